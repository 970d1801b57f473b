import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Messages that are not acknowledged, that fail, and that are dead. */
final class Failures {
  private static final Duration SOON = Duration.ofSeconds(30);

  private Failures() {}

  static void addTo(Map<String, Matrix.Check> checks) {
    checks.put("dead_letter", Failures::deadLetter);
    checks.put("retry", Failures::retry);
    checks.put("acknowledge", Failures::acknowledge);
  }

  private static void acknowledge(Room room) throws Exception {
    SimpleConsumer consumer = room.simple();
    Producer producer = room.producer();
    room.send(producer, "done");
    room.send(producer, "open");
    List<MessageView> got = new ArrayList<>();
    long received = 0;
    for (MessageView message : room.peek(consumer, 2, SOON)) {
      if (Room.body(message).equals("done")) {
        consumer.ack(message);
      }
      got.add(message);
      received = System.nanoTime();
    }
    Matrix.check(Room.sorted(got).equals(Arrays.asList("done", "open")), "received " + Room.sorted(got));
    List<MessageView> again = room.peek(consumer, 1, Duration.ofSeconds(40));
    long after = Duration.ofNanos(System.nanoTime() - received).toMillis();
    Matrix.check(Room.bodies(again).equals(Collections.singletonList("open")), "came again: " + Room.bodies(again));
    Matrix.check(again.get(0).getDeliveryAttempt() == 2, "attempt " + again.get(0).getDeliveryAttempt());
    Matrix.check(after > 8_000 && after < 25_000, "came again after " + after + " ms");
    consumer.changeInvisibleDuration(again.get(0), Duration.ofSeconds(12));
    List<MessageView> third = room.receive(consumer, 1, Duration.ofSeconds(40));
    Matrix.check(Room.bodies(third).equals(Collections.singletonList("open")), "third: " + Room.bodies(third));
    Matrix.check(third.get(0).getDeliveryAttempt() == 3, "attempt " + third.get(0).getDeliveryAttempt());
  }

  private static void retry(Room room) throws Exception {
    List<String> given = Collections.synchronizedList(new ArrayList<>());
    List<MessageView> taken = room.push(message -> {
      given.add(Room.body(message) + message.getDeliveryAttempt());
      boolean fails = Room.body(message).equals("bad") && message.getDeliveryAttempt() == 1;
      return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    });
    Producer producer = room.producer();
    room.send(producer, "bad");
    room.send(producer, "good");
    Room.await(taken, bodies -> bodies.size() >= 3, 90);
    Matrix.pause(Duration.ofSeconds(4));
    Collections.sort(given);
    Matrix.check(given.equals(Arrays.asList("bad1", "bad2", "good1")), "given " + given);
  }

  private static void deadLetter(Room room) throws Exception {
    List<MessageView> taken = room.push(message -> ConsumeResult.FAILURE);
    String id = room.send(room.producer(), "bad").getMessageId().toString();
    Room.await(taken, bodies -> bodies.size() >= 2, 60);
    SimpleConsumer undertaker = undertaker(room);
    List<MessageView> dead = room.receive(undertaker, 1, Duration.ofSeconds(60));
    Matrix.check(Room.bodies(dead).equals(Collections.singletonList("bad")), "dead letters " + Room.bodies(dead));
    Matrix.check(dead.get(0).getMessageId().toString().equals(id), "another message id");
    Matrix.check(taken.size() == 2, "given " + taken.size() + " times");
  }

  /** Starts a consumer of the dead letters, once there are some: the original's proxy remembers for 20 s that not. */
  private static SimpleConsumer undertaker(Room room) throws Exception {
    for (int attempt = 0; ; attempt++) {
      Matrix.pause(Duration.ofSeconds(12));
      try {
        return room.simple("undertaker_" + room.topic, "%DLQ%" + room.topic, "*", FilterExpressionType.TAG);
      } catch (ClientException | IllegalStateException none) {
        Matrix.check(attempt < 4, "no dead letters: " + none);
      }
    }
  }
}
