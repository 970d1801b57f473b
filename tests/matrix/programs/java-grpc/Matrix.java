import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;

/** The checks of {@code make matrix} for the gRPC client for Java: one program for all its versions. */
public final class Matrix {
  static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
  private static final int BESIDE = 8;

  /** A check; what it throws is what it saw. */
  interface Check {
    void run(Room room) throws Throwable;
  }

  private Matrix() {}

  public static void main(String[] args) throws Exception {
    Map<String, Check> checks = new LinkedHashMap<>();
    // The longest checks come first.
    Failures.addTo(checks);
    Refusals.addTo(checks);
    Kinds.addTo(checks);
    Plain.addTo(checks);
    String[] wanted = System.getenv("MATRIX_CHECKS").split(" ");
    checks.keySet().retainAll(java.util.Arrays.asList(wanted));
    warmUp();
    ExecutorService pool = Executors.newFixedThreadPool(BESIDE);
    checks.forEach((name, check) -> pool.execute(() -> report(name, check)));
    pool.shutdown();
    pool.awaitTermination(1, TimeUnit.HOURS);
    // Threads of clients may live on.
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }

  /** The first client of a server waits longest; it need not start at once. */
  private static void warmUp() {
    for (int attempt = 0; attempt < 3; attempt++) {
      try (Room room = new Room("send")) {
        room.producer();
        return;
      } catch (Exception slow) {
        slow.printStackTrace();
      }
    }
  }

  private static void report(String name, Check check) {
    String verdict;
    try (Room room = new Room(name)) {
      check.run(room);
      verdict = "ok";
    } catch (Throwable failure) {
      Throwable seen = failure instanceof InvocationTargetException ? failure.getCause() : failure;
      seen.printStackTrace();
      StringBuilder text = new StringBuilder(seen instanceof AssertionError ? seen.getMessage() : seen.toString());
      for (Throwable cause = seen.getCause(); cause != null; cause = cause.getCause()) {
        text.append("; caused by ").append(cause);
      }
      verdict = "FAILED " + text.toString().replaceAll("\\s+", " ");
    }
    System.out.println("CHECK " + name + " " + verdict);
  }

  static ClientConfiguration configuration() throws Exception {
    ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
        .setEndpoints(System.getenv("MATRIX_ENDPOINT"))
        // The default of 3 s is short for a server that has just started on a busy machine.
        .setRequestTimeout(Duration.ofSeconds(10));
    String accessKey = System.getenv("MATRIX_ACCESS_KEY");
    if (accessKey != null) {
      builder.setCredentialProvider(
          new StaticSessionCredentialsProvider(accessKey, System.getenv("MATRIX_SECRET_KEY")));
    }
    try {
      ClientConfigurationBuilder.class.getMethod("enableSsl", boolean.class).invoke(builder, false);
    } catch (NoSuchMethodException old) {
      // The first versions always speak TLS, and trust every certificate.
    }
    return builder.build();
  }

  static void check(boolean holds, String seen) {
    if (!holds) {
      throw new AssertionError(seen);
    }
  }

  static void pause(Duration duration) throws InterruptedException {
    Thread.sleep(Math.max(0, duration.toMillis()));
  }
}
