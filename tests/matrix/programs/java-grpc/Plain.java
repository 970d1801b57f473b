import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Messages that are sent, filtered, consumed. */
final class Plain {
  private static final Duration SOON = Duration.ofSeconds(30);

  private Plain() {}

  static void addTo(Map<String, Matrix.Check> checks) {
    checks.put("send", Plain::send);
    checks.put("consume", Plain::consume);
    checks.put("tags", Plain::tags);
    checks.put("sql", Plain::sql);
    checks.put("big_body", Plain::bigBody);
  }

  private static void send(Room room) throws Exception {
    Producer producer = room.producer();
    Map<String, String> sent = new TreeMap<>();
    sent.put(
        producer.send(room.message("sync").setTag("tag").setKeys("k1", "k2").addProperty("color", "azure").build())
            .getMessageId().toString(),
        "sync");
    sent.put(
        producer.sendAsync(room.message("async").build()).get(20, TimeUnit.SECONDS).getMessageId().toString(), "async");
    Map<String, String> got = new TreeMap<>();
    for (MessageView message : room.receive(room.simple(), 2, SOON)) {
      got.put(message.getMessageId().toString(), Room.body(message));
      String seen = message.getTopic() + " " + message.getTag() + " " + message.getKeys() + " " + message.getProperties()
          + " " + message.getDeliveryAttempt() + " " + message.getMessageGroup() + " " + message.getDeliveryTimestamp();
      String expected = Room.body(message).equals("sync")
          ? room.topic + " Optional[tag] [k1, k2] {color=azure} 1 Optional.empty Optional.empty"
          : room.topic + " Optional.empty [] {} 1 Optional.empty Optional.empty";
      Matrix.check(seen.equals(expected), seen);
    }
    Matrix.check(got.equals(sent), "sent " + sent + ", received " + got);
  }

  private static void consume(Room room) throws Exception {
    List<MessageView> taken = room.push(message -> ConsumeResult.SUCCESS);
    Producer producer = room.producer();
    List<String> sent = new java.util.ArrayList<>();
    for (int number = 0; number < 10; number++) {
      room.send(producer, "m" + number);
      sent.add("m" + number);
    }
    Room.await(taken, bodies -> bodies.size() >= sent.size(), 60);
    Matrix.pause(Duration.ofSeconds(3));
    Matrix.check(Room.sorted(taken).equals(sent), "given: " + Room.sorted(taken));
  }

  private static void tags(Room room) throws Exception {
    SimpleConsumer consumer = room.simple(room.topic, room.topic, "a || b", FilterExpressionType.TAG);
    Producer producer = room.producer();
    for (String tag : Arrays.asList("a", "b", "c")) {
      producer.send(room.message(tag).setTag(tag).build());
    }
    room.send(producer, "none");
    filtered(room, consumer, "a", "b");
  }

  private static void sql(Room room) throws Exception {
    SimpleConsumer consumer =
        room.simple(room.topic, room.topic, "size > 1 AND color IS NOT NULL", FilterExpressionType.SQL92);
    Producer producer = room.producer();
    for (int size = 1; size < 4; size++) {
      producer.send(
          room.message("s" + size).addProperty("size", String.valueOf(size)).addProperty("color", "blue").build());
    }
    room.send(producer, "none");
    filtered(room, consumer, "s2", "s3");
  }

  private static void filtered(Room room, SimpleConsumer consumer, String... expected) throws Exception {
    List<MessageView> got = room.receive(consumer, expected.length, SOON);
    Matrix.check(Room.sorted(got).equals(Arrays.asList(expected)), "received " + Room.sorted(got));
    List<MessageView> more = room.receive(consumer, 1, Duration.ofMillis(1));
    Matrix.check(more.isEmpty(), "received also " + Room.bodies(more));
  }

  private static void bigBody(Room room) throws Exception {
    Producer producer = room.producer();
    byte[] body = new byte[3 << 20];
    new java.util.Random(1).nextBytes(body);
    producer.send(room.message("-").setBody(body).build());
    List<MessageView> got = room.receive(room.simple(), 1, SOON);
    Matrix.check(got.size() == 1, "received " + got.size());
    byte[] back = new byte[got.get(0).getBody().remaining()];
    got.get(0).getBody().duplicate().get(back);
    Matrix.check(Arrays.equals(body, back), "another body of " + back.length + " bytes");
    String text = String.join("", Collections.nCopies((4 << 20) + 1, "x"));
    Room.refused("essage body size exceeds the threshold", () -> room.send(producer, text));
  }
}
