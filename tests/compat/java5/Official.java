import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;

/**
 * RocketMQ's own gRPC client for Java, driven line by line as {@code Clients.java} is; {@code node/official.js} understands
 * the same commands. SECURITY is {@code plain} or {@code tls}, and then {@code :ACCESS:SECRET} or nothing. FROM is the
 * subscription: a topic, an expression, and {@code tag} or {@code sql}.
 *
 * <pre>
 * producer NAME ENDPOINT SECURITY VERDICT TOPIC…     see {@link OfficialProducer}; VERDICT is what it answers to a check-back
 * simple NAME ENDPOINT SECURITY GROUP MILLIS FROM    a SimpleConsumer that waits so long; see {@link OfficialConsumer}
 * push NAME ENDPOINT SECURITY GROUP FROM             a PushConsumer
 * close NAME
 * </pre>
 *
 * SECURITY is {@code tls} or {@code plain}.
 */
public final class Official {
  public static void main(String[] args) throws Exception {
    Map<String, Driven> clients = new HashMap<>();
    Commands.serve((command, name, words) -> run(clients, command, name, words));
  }

  private static String run(Map<String, Driven> clients, String command, String name, String[] args) throws Exception {
    switch (command) {
      case "producer":
        clients.put(name, OfficialProducer.start(args));
        return "";
      case "simple":
      case "push":
        clients.put(name, OfficialConsumer.start(command, args));
        return "";
      case "close":
        clients.remove(name).close();
        return "";
      default:
        return clients.get(name).answer(command, args);
    }
  }

  static ClientConfiguration configuration(String endpoint, String security) {
    String[] words = security.split(":");
    ClientConfigurationBuilder builder = ClientConfiguration.newBuilder();
    if (words.length > 1) {
      builder.setCredentialProvider(new StaticSessionCredentialsProvider(words[1], words[2]));
    }
    return builder
        .setEndpoints(endpoint)
        .enableSsl(words[0].equals("tls"))
        // The default of 3 s is short where two cores are busy.
        .setRequestTimeout(java.time.Duration.ofSeconds(20))
        .build();
  }

  /** A client that answers commands. */
  interface Driven extends AutoCloseable {
    String answer(String command, String[] args) throws Exception;
  }
}
