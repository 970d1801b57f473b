import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Runs the version of RocketMQ's remoting client on the class path and prints one line for each check.
 *
 * <p>The classes beside this one use only what exists since 4.3.0; those of {@code since46} are compiled for newer
 * versions and found by name. Arguments: the checks to run; without arguments all that the version has.
 */
public final class Matrix {
  private static final int LIMIT_SECONDS = 165;
  /** So many checks run beside each other. */
  private static final int THREADS = 6;

  static final String NAMESRV = System.getenv("MATRIX_NAMESRV");
  static final String RUN = System.getenv("MATRIX_RUN");

  /** One check; what it returns is printed behind "ok", what it throws behind "FAILED". */
  interface Check {
    String run(String topic) throws Exception;
  }

  private final Map<String, Check> checks = new LinkedHashMap<>();

  void add(String name, Check check) {
    checks.put(name, check);
  }

  /** Fails the check when what was seen is not what was expected. */
  static void same(String what, Object expected, Object seen) {
    if (!expected.equals(seen)) {
      throw new AssertionError(what + ": " + seen + ", not " + expected);
    }
  }

  static void that(boolean holds, String otherwise) {
    if (!holds) {
      throw new AssertionError(otherwise);
    }
  }

  public static void main(String[] args) throws Exception {
    Matrix matrix = new Matrix();
    matrix.add("transaction", Transactions::transaction);
    Consumers.addTo(matrix);
    Sends.addTo(matrix);
    Lookups.addTo(matrix);
    try {
      Class.forName("Newer").getDeclaredMethod("addTo", Matrix.class).invoke(null, matrix);
    } catch (ClassNotFoundException absent) {
      // This version has none of these checks.
    }
    if (args.length > 0) {
      matrix.checks.keySet().retainAll(List.of(args));
    }
    matrix.runAll();
    System.exit(0);
  }

  private void runAll() throws InterruptedException {
    ExecutorService pool = Executors.newFixedThreadPool(THREADS);
    List<String> open = new ArrayList<>(checks.keySet());
    checks.forEach(
        (name, check) ->
            pool.execute(
                () -> {
                  String line = outcome(check, name + "_" + RUN);
                  synchronized (open) {
                    if (open.remove(name)) {
                      System.out.println("CHECK " + name + " " + line);
                    }
                  }
                }));
    pool.shutdown();
    pool.awaitTermination(LIMIT_SECONDS, TimeUnit.SECONDS);
    synchronized (open) {
      for (String name : open) {
        System.out.println("CHECK " + name + " FAILED not done after " + LIMIT_SECONDS + " s");
      }
      open.clear();
    }
  }

  private static String outcome(Check check, String topic) {
    try {
      return ("ok " + check.run(topic)).trim();
    } catch (Throwable failure) {
      if (System.getenv("MATRIX_TRACE") != null) {
        failure.printStackTrace();
      }
      StringBuilder reason =
          new StringBuilder(failure instanceof AssertionError ? failure.getMessage() : failure.toString());
      for (Throwable cause = failure.getCause(); cause != null; cause = cause.getCause()) {
        reason.append("; caused by ").append(cause);
      }
      return "FAILED " + reason.toString().replace('\n', ' ');
    }
  }
}
