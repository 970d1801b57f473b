import java.io.Closeable;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.function.Predicate;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/** A check's topic, its group, and clients that are closed at its end. */
final class Room implements AutoCloseable {
  static final Duration INVISIBLE = Duration.ofSeconds(10);
  private static final Duration WAIT = Duration.ofSeconds(5);

  final String topic;
  private final List<Closeable> open = new ArrayList<>();

  Room(String name) {
    topic = name + "_" + System.getenv("MATRIX_RUN");
  }

  <T extends Closeable> T keep(T client) {
    open.add(client);
    return client;
  }

  Producer producer() throws Exception {
    return keep(Matrix.PROVIDER.newProducerBuilder().setClientConfiguration(Matrix.configuration()).setTopics(topic).build());
  }

  SimpleConsumer simple() throws Exception {
    return simple(topic, topic, "*", FilterExpressionType.TAG);
  }

  SimpleConsumer simple(String group, String from, String expression, FilterExpressionType type) throws Exception {
    return keep(Matrix.PROVIDER.newSimpleConsumerBuilder()
        .setClientConfiguration(Matrix.configuration())
        .setConsumerGroup(group)
        .setAwaitDuration(WAIT)
        .setSubscriptionExpressions(Collections.singletonMap(from, new FilterExpression(expression, type)))
        .build());
  }

  /** Starts a push consumer and returns the list of what it is given. */
  List<MessageView> push(MessageListener listener) throws Exception {
    List<MessageView> taken = Collections.synchronizedList(new ArrayList<>());
    Matrix.PROVIDER.newPushConsumerBuilder()
        .setClientConfiguration(Matrix.configuration())
        .setConsumerGroup(topic)
        .setSubscriptionExpressions(
            Collections.singletonMap(topic, new FilterExpression("*", FilterExpressionType.TAG)))
        .setMessageListener(message -> {
          ConsumeResult result = listener.consume(message);
          taken.add(message);
          return result;
        })
        .build();
    return taken;
  }

  MessageBuilder message(String body) {
    return Matrix.PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
  }

  SendReceipt send(Producer producer, String body) throws Exception {
    return producer.send(message(body).build());
  }

  /** Receives until there are so many, for so long at most, and acknowledges each at once. */
  List<MessageView> receive(SimpleConsumer consumer, int count, Duration limit) throws Exception {
    return receive(consumer, count, limit, true);
  }

  /** Receives until there are so many, for so long at most. */
  List<MessageView> peek(SimpleConsumer consumer, int count, Duration limit) throws Exception {
    return receive(consumer, count, limit, false);
  }

  private static List<MessageView> receive(SimpleConsumer consumer, int count, Duration limit, boolean acknowledges)
      throws Exception {
    List<MessageView> got = new ArrayList<>();
    long end = System.nanoTime() + limit.toNanos();
    while (got.size() < count && System.nanoTime() < end) {
      for (MessageView message : consumer.receive(count - got.size(), INVISIBLE)) {
        if (acknowledges) {
          consumer.ack(message);
        }
        got.add(message);
      }
    }
    return got;
  }

  static String body(MessageView message) {
    ByteBuffer body = message.getBody().duplicate();
    byte[] bytes = new byte[body.remaining()];
    body.get(bytes);
    return new String(bytes, StandardCharsets.UTF_8);
  }

  static List<String> bodies(List<MessageView> messages) {
    List<String> bodies = new ArrayList<>();
    for (MessageView message : messages.toArray(new MessageView[0])) {
      bodies.add(body(message));
    }
    return bodies;
  }

  static List<String> sorted(List<MessageView> messages) {
    List<String> bodies = bodies(messages);
    Collections.sort(bodies);
    return bodies;
  }

  /** Waits until the list fits, for so long at most; what it held then is what was seen. */
  static void await(List<MessageView> taken, Predicate<List<String>> fits, int seconds) throws Exception {
    for (int i = 0; i < seconds * 10 && !fits.test(bodies(taken)); i++) {
      Matrix.pause(Duration.ofMillis(100));
    }
    Matrix.check(fits.test(bodies(taken)), "given after " + seconds + " s: " + bodies(taken));
  }

  /** Checks that a call is refused with a code. */
  static void refused(int code, Callable<?> call) throws Exception {
    try {
      Object answer = call.call();
      throw new AssertionError("accepted: " + answer);
    } catch (ClientException failure) {
      Matrix.check(failure.getMessage().contains("code=" + code), String.valueOf(failure.getMessage()));
    }
  }

  /** Checks that the client itself refuses a call, with these words. */
  static void refused(String words, Callable<?> call) {
    Object answer;
    try {
      answer = call.call();
    } catch (Exception failure) {
      Matrix.check(String.valueOf(failure).contains(words), String.valueOf(failure));
      return;
    }
    throw new AssertionError("accepted: " + answer);
  }

  @Override
  public void close() {
    for (Closeable client : open) {
      try {
        client.close();
      } catch (Exception failure) {
        failure.printStackTrace();
      }
    }
  }
}
