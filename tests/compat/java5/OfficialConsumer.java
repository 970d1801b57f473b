import java.io.Closeable;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * A consumer that keeps what it got, in the order of delivery, numbered from 0. A listener fails a message as often as
 * the message's property {@code fail} says.
 *
 * <pre>
 * receive COUNT MILLIS   at most so many, invisible to others for so long; answers how many there are in all
 * ack NUMBER             acknowledges a message
 * change NUMBER MILLIS   makes it invisible for so long from now
 * subscribe FROM         one more subscription
 * await COUNT SECONDS    waits until there were so many deliveries in all; answers how many there were
 * taken FILE             writes a line for each; see {@link #line}
 * </pre>
 */
final class OfficialConsumer implements Official.Driven {
  private static final int LONG = 200;

  private final List<MessageView> taken = Collections.synchronizedList(new ArrayList<>());
  private final Semaphore arrived = new Semaphore(0);
  private SimpleConsumer simple;
  private Closeable client;

  private OfficialConsumer() {}

  static OfficialConsumer start(String command, String[] args) throws Exception {
    OfficialConsumer consumer = new OfficialConsumer();
    ClientServiceProvider provider = ClientServiceProvider.loadService();
    ClientConfiguration configuration = Official.configuration(args[0], args[1]);
    if (command.equals("simple")) {
      consumer.simple = provider.newSimpleConsumerBuilder()
          .setClientConfiguration(configuration)
          .setConsumerGroup(args[2])
          .setAwaitDuration(Duration.ofMillis(Long.parseLong(args[3])))
          .setSubscriptionExpressions(Map.of(args[4], expression(args[5], args[6])))
          .build();
      consumer.client = consumer.simple;
    } else {
      consumer.client = provider.newPushConsumerBuilder()
          .setClientConfiguration(configuration)
          .setConsumerGroup(args[2])
          .setSubscriptionExpressions(Map.of(args[3], expression(args[4], args[5])))
          .setMessageListener(consumer::take)
          .build();
    }
    return consumer;
  }

  private static FilterExpression expression(String text, String kind) {
    return new FilterExpression(text, kind.equals("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG);
  }

  private ConsumeResult take(MessageView message) {
    taken.add(message);
    arrived.release();
    int failures = Integer.parseInt(message.getProperties().getOrDefault("fail", "0"));
    return message.getDeliveryAttempt() > failures ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
  }

  @Override
  public String answer(String command, String[] args) throws Exception {
    switch (command) {
      case "receive":
        taken.addAll(simple.receive(Integer.parseInt(args[0]), Duration.ofMillis(Long.parseLong(args[1]))));
        return String.valueOf(taken.size());
      case "ack":
        simple.ack(taken.get(Integer.parseInt(args[0])));
        return "";
      case "change":
        simple.changeInvisibleDuration(
            taken.get(Integer.parseInt(args[0])), Duration.ofMillis(Long.parseLong(args[1])));
        return "";
      case "subscribe":
        simple.subscribe(args[0], expression(args[1], args[2]));
        return "";
      case "await":
        int count = Integer.parseInt(args[0]);
        if (arrived.tryAcquire(count, Integer.parseInt(args[1]), TimeUnit.SECONDS)) {
          arrived.release(count);
        }
        return String.valueOf(taken.size());
      case "taken":
        List<String> lines = new ArrayList<>();
        for (MessageView message : taken.toArray(new MessageView[0])) {
          lines.add(line(message));
        }
        Files.write(Paths.get(args[0]), lines);
        return "";
      default:
        throw new IllegalArgumentException(command);
    }
  }

  /**
   * Id, topic, body, tag, keys, message group, delivery time, priority, attempt, and the properties as {@code
   * NAME=VALUE}; of a long body its length and SHA-256.
   */
  private static String line(MessageView message) throws Exception {
    List<String> words = new ArrayList<>(List.of(
        message.getMessageId().toString(),
        message.getTopic(),
        body(message.getBody()),
        message.getTag().orElse(""),
        String.join(",", message.getKeys()),
        message.getMessageGroup().orElse(""),
        message.getDeliveryTimestamp().map(String::valueOf).orElse(""),
        message.getPriority().map(String::valueOf).orElse(""),
        String.valueOf(message.getDeliveryAttempt())));
    new TreeMap<>(message.getProperties()).forEach((name, value) -> words.add(name + "=" + value));
    return String.join("\t", words);
  }

  private static String body(ByteBuffer body) throws Exception {
    byte[] bytes = new byte[body.remaining()];
    body.duplicate().get(bytes);
    return bytes.length <= LONG
        ? new String(bytes, StandardCharsets.UTF_8)
        : bytes.length + ":" + HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
  }

  @Override
  public void close() throws Exception {
    client.close();
  }
}
