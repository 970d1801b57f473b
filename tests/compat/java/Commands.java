import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Arrays;

/**
 * Drives a program line by line: a command with its arguments joined by tabs comes on standard input, one line goes
 * back, {@code ok} with the answer or {@code error} with the reason. Whatever else is printed goes to standard error.
 */
final class Commands {
  private Commands() {}

  /** What a program does with a command, the name it is for, and its arguments. */
  interface Program {
    String run(String command, String name, String[] args) throws Exception;
  }

  static void serve(Program program) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);
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
}
