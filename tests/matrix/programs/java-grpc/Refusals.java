import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** What RocketMQ refuses, and with which code. */
final class Refusals {
  private static final Duration SOON = Duration.ofSeconds(30);

  private Refusals() {}

  static void addTo(Map<String, Matrix.Check> checks) {
    checks.put("late_ack", Refusals::lateAck);
    checks.put("second_ack", Refusals::secondAck);
    checks.put("short_invisible", Refusals::shortInvisible);
    checks.put("long_delay", Refusals::longDelay);
    checks.put("unknown_topic", Refusals::unknownTopic);
    checks.put("wrong_type", Refusals::wrongType);
  }

  private static MessageView received(Room room, SimpleConsumer consumer) throws Exception {
    room.send(room.producer(), "body");
    List<MessageView> got = room.peek(consumer, 1, SOON);
    Matrix.check(got.size() == 1, "received " + got.size());
    return got.get(0);
  }

  private static void lateAck(Room room) throws Exception {
    SimpleConsumer consumer = room.simple();
    MessageView message = received(room, consumer);
    Matrix.pause(Room.INVISIBLE.plusSeconds(2));
    Room.refused(40013, () -> {
      consumer.ack(message);
      return "acknowledged";
    });
  }

  private static void secondAck(Room room) throws Exception {
    SimpleConsumer consumer = room.simple();
    MessageView message = received(room, consumer);
    consumer.ack(message);
    consumer.ack(message);
  }

  private static void shortInvisible(Room room) throws Exception {
    SimpleConsumer consumer = room.simple();
    room.send(room.producer(), "body");
    Room.refused(40011, () -> consumer.receive(1, Duration.ofSeconds(1)));
  }

  private static void longDelay(Room room) throws Exception {
    Producer producer = room.producer();
    long due = System.currentTimeMillis() + Duration.ofDays(2).toMillis();
    Room.refused(40012, () -> producer.send(room.message("late").setDeliveryTimestamp(due).build()));
  }

  private static void unknownTopic(Room room) throws Exception {
    Producer producer =
        room.keep(Matrix.PROVIDER.newProducerBuilder().setClientConfiguration(Matrix.configuration()).build());
    Room.refused(40402, () -> room.send(producer, "body"));
  }

  private static void wrongType(Room room) throws Exception {
    Producer producer = room.producer();
    Room.refused(
        "essage type not match with topic",
        () -> producer.send(room.message("body").setMessageGroup("group").build()));
  }
}
