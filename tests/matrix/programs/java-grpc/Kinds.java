import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Messages in order, delayed, in transactions, with priorities. */
final class Kinds {
  private static final Duration SOON = Duration.ofSeconds(40);
  private static final List<String> SIX = Arrays.asList("m0", "m1", "m2", "m3", "m4", "m5");

  private Kinds() {}

  static void addTo(Map<String, Matrix.Check> checks) {
    checks.put("transaction", Kinds::transaction);
    checks.put("order", Kinds::order);
    checks.put("order_push", Kinds::orderPush);
    checks.put("delay", Kinds::delay);
    checks.put("recall", Kinds::recall);
    checks.put("priority", Kinds::priority);
  }

  private static void transaction(Room room) throws Exception {
    List<String> asked = new CopyOnWriteArrayList<>();
    Producer producer = room.keep(Matrix.PROVIDER.newProducerBuilder()
        .setClientConfiguration(Matrix.configuration())
        .setTopics(room.topic)
        .setTransactionChecker(message -> {
          asked.add(Room.body(message));
          return TransactionResolution.COMMIT;
        })
        .build());
    for (String end : Arrays.asList("commit", "rollback", "unknown")) {
      Transaction transaction = producer.beginTransaction();
      producer.send(room.message(end).build(), transaction);
      if (end.equals("commit")) {
        transaction.commit();
      } else if (end.equals("rollback")) {
        transaction.rollback();
      }
    }
    List<MessageView> got = room.receive(room.simple(), 2, Duration.ofSeconds(90));
    Matrix.check(
        Room.sorted(got).equals(Arrays.asList("commit", "unknown")), "received " + Room.sorted(got) + ", asked " + asked);
    List<MessageView> more = room.receive(room.simple(), 1, Duration.ofMillis(1));
    Matrix.check(more.isEmpty(), "received also " + Room.bodies(more));
  }

  private static void sendSix(Room room) throws Exception {
    Producer producer = room.producer();
    for (String body : SIX) {
      producer.send(room.message(body).setMessageGroup("group").build());
    }
  }

  private static void order(Room room) throws Exception {
    SimpleConsumer consumer = room.simple();
    sendSix(room);
    List<MessageView> got = new ArrayList<>();
    for (int round = 0; round < 10 && got.size() < SIX.size(); round++) {
      List<MessageView> some = consumer.receive(2, Room.INVISIBLE);
      for (MessageView message : some) {
        consumer.ack(message);
      }
      got.addAll(some);
    }
    Matrix.check(Room.bodies(got).equals(SIX), "received " + Room.bodies(got));
    Matrix.check(got.get(0).getMessageGroup().get().equals("group"), "group " + got.get(0).getMessageGroup());
  }

  private static void orderPush(Room room) throws Exception {
    List<MessageView> taken = room.push(message -> ConsumeResult.SUCCESS);
    sendSix(room);
    Room.await(taken, bodies -> bodies.equals(SIX), 40);
  }

  private static void delay(Room room) throws Exception {
    SimpleConsumer consumer = room.simple();
    Producer producer = room.producer();
    long due = System.currentTimeMillis() + 6_000;
    producer.send(room.message("later").setDeliveryTimestamp(due).build());
    List<MessageView> got = room.receive(consumer, 1, SOON);
    long late = System.currentTimeMillis() - due;
    Matrix.check(got.size() == 1, "not received in 40 s");
    Matrix.check(late >= -100 && late < 6_000, "received " + late + " ms after it was due");
    Matrix.check(
        got.get(0).getDeliveryTimestamp().map(at -> at == due).orElse(false),
        "due " + due + ", it says " + got.get(0).getDeliveryTimestamp());
  }

  private static void recall(Room room) throws Exception {
    SimpleConsumer consumer = room.simple();
    Producer producer = room.producer();
    long due = System.currentTimeMillis() + 8_000;
    SendReceipt receipt = producer.send(room.message("recalled").setDeliveryTimestamp(due).build());
    producer.send(room.message("stays").setDeliveryTimestamp(due).build());
    Object handle = SendReceipt.class.getMethod("getRecallHandle").invoke(receipt);
    Object answer =
        Producer.class.getMethod("recallMessage", String.class, String.class).invoke(producer, room.topic, handle);
    Object id = Class.forName("org.apache.rocketmq.client.apis.producer.RecallReceipt")
        .getMethod("getMessageId").invoke(answer);
    Matrix.check(id.toString().equals(receipt.getMessageId().toString()), "recalled " + id);
    List<MessageView> got = room.receive(consumer, 1, SOON);
    got.addAll(room.receive(consumer, 1, Duration.ofMillis(1)));
    Matrix.check(Room.bodies(got).equals(Collections.singletonList("stays")), "received " + Room.bodies(got));
  }

  private static void priority(Room room) throws Exception {
    Producer producer = room.producer();
    for (int priority = 0; priority < 3; priority++) {
      MessageBuilder message = room.message("p" + priority);
      MessageBuilder.class.getMethod("setPriority", int.class).invoke(message, priority);
      producer.send(message.build());
    }
    SimpleConsumer consumer = room.simple();
    List<MessageView> got = new ArrayList<>();
    for (int number = 0; number < 3; number++) {
      got.addAll(room.receive(consumer, 1, SOON));
    }
    Matrix.check(Room.bodies(got).equals(Arrays.asList("p2", "p1", "p0")), "received " + Room.bodies(got));
  }
}
