import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.LockInfo;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Drives a program line by line: a command with its arguments joined by tabs comes on standard input, one line goes
 * back, {@code ok} with the answer or {@code error} with the reason. Whatever else is printed goes to standard error.
 */
final class Commands {
  private static final long PAUSE_MS = 10;
  private static final String EVENTS = "NettyEventExecutor";

  private Commands() {}

  /** What a program does with a command, the name it is for, and its arguments. */
  interface Program {
    String run(String command, String name, String[] args) throws Exception;
  }

  static void serve(Program program) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);
    Thread here = Thread.currentThread();
    Executors.newSingleThreadScheduledExecutor()
        .scheduleWithFixedDelay(() -> endWait(here), PAUSE_MS, PAUSE_MS, TimeUnit.MILLISECONDS);
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      String[] words = line.split("\t", -1);
      String answer;
      try {
        answer = "ok\t" + program.run(words[0], words[1], Arrays.copyOfRange(words, 2, words.length));
      } catch (Throwable thrown) {
        thrown.printStackTrace();
        answer = "error\t" + thrown.toString().replaceAll("\\s+", " ");
      }
      answers.println(answer);
      answers.flush();
    }
    // Threads of clients and brokers may still run; nothing is left to write.
    Runtime.getRuntime().halt(0);
  }

  /** Wakes the thread of events for which a command waits: it looks every three seconds whether its client is closed. */
  private static void endWait(Thread commands) {
    LockInfo waitedFor = ManagementFactory.getThreadMXBean().getThreadInfo(commands.getId()).getLockInfo();
    if (waitedFor != null && waitedFor.getClassName().equals(Thread.class.getName())) {
      Thread.getAllStackTraces().keySet().stream()
          .filter(thread -> System.identityHashCode(thread) == waitedFor.getIdentityHashCode())
          .filter(thread -> thread.getName().startsWith(EVENTS))
          .forEach(Thread::interrupt);
    }
  }
}
