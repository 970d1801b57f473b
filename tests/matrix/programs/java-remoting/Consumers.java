import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What push consumers get: plain, by tag and SQL, in order, late, again, and never again. */
final class Consumers {
  private static final int SECONDS = 60;
  private static final String DEAD = "%DLQ%";

  private Consumers() {}

  static void addTo(Matrix matrix) {
    matrix.add("consume", Consumers::consume);
    matrix.add("tags", topic -> filtered(topic, consumer -> consumer.subscribe(topic, "red || blue")));
    matrix.add(
        "sql",
        topic ->
            filtered(
                topic,
                consumer ->
                    consumer.subscribe(topic, MessageSelector.bySql("size BETWEEN 1 AND 3 AND TAGS <> 'green'"))));
    matrix.add("order", Consumers::order);
    matrix.add("delay", Consumers::delay);
    matrix.add("retry", Consumers::retry);
    matrix.add("dead_letter", Consumers::deadLetter);
    matrix.add("broadcast", Consumers::broadcast);
  }

  private static String consume(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    Kit.Inbox inbox = new Kit.Inbox();
    try {
      consumer.subscribe(topic, "*");
      consumer.registerMessageListener(inbox);
      consumer.start();
      Map<String, SendResult> sent = new TreeMap<>();
      for (int i = 10; i < 30; i++) {
        Message message = new Message(topic, "tag", "key" + i + " other", ("body " + i).getBytes());
        message.putUserProperty("number", String.valueOf(i));
        message.putUserProperty("text", "Grüße, 你好");
        sent.put("body " + i, producer.send(message));
      }
      List<MessageExt> seen = inbox.take(20, SECONDS);
      Matrix.same("bodies", new ArrayList<>(sent.keySet()), Kit.bodies(seen));
      for (MessageExt message : seen) {
        SendResult result = sent.get(Kit.text(message));
        Matrix.same("id", result.getMsgId(), message.getMsgId());
        Matrix.same("queue", result.getMessageQueue().getQueueId(), message.getQueueId());
        Matrix.same("queue offset", result.getQueueOffset(), message.getQueueOffset());
        Matrix.same("tag", "tag", message.getTags());
        Matrix.same("keys", "key" + message.getUserProperty("number") + " other", message.getKeys());
        Matrix.same("text", "Grüße, 你好", message.getUserProperty("text"));
        Matrix.same("times", 0, message.getReconsumeTimes());
        Matrix.that(message.getStoreTimestamp() >= message.getBornTimestamp() - 1_000, "stored before it was born");
        Matrix.that(message.getBornHostString().startsWith("127."), "born at " + message.getBornHostString());
      }
      inbox.nothingElse(500);
      return Kit.names(seen.get(0).getProperties());
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }

  private interface Subscription {
    void apply(DefaultMQPushConsumer consumer) throws Exception;
  }

  private static String filtered(String topic, Subscription subscription) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    Kit.Inbox inbox = new Kit.Inbox();
    try {
      subscription.apply(consumer);
      consumer.registerMessageListener(inbox);
      consumer.start();
      String[] tags = {"red", "green", "blue", "green", "red", "green"};
      for (int i = 0; i < tags.length; i++) {
        Message message = new Message(topic, tags[i], (tags[i] + " " + i).getBytes());
        message.putUserProperty("size", String.valueOf(i % 4 == 0 ? 1 : i));
        producer.send(message);
      }
      producer.send(Kit.message(topic, "without a tag"));
      List<MessageExt> seen = inbox.take(3, SECONDS);
      Matrix.same("chosen", List.of("blue 2", "red 0", "red 4"), Kit.bodies(seen));
      inbox.nothingElse(500);
      return "";
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }

  private static String order(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    Kit.Inbox inbox = new Kit.Inbox();
    AtomicBoolean suspended = new AtomicBoolean();
    try {
      for (int i = 0; i < 32; i++) {
        int key = i % 4;
        producer.send(
            Kit.message(topic, key + ":" + i / 4), (queues, message, choice) -> queues.get(key % queues.size()), key);
      }
      consumer.subscribe(topic, "*");
      consumer.setConsumeMessageBatchMaxSize(1);
      consumer.registerMessageListener(
          (MessageListenerOrderly)
              (batch, context) -> {
                if (Kit.text(batch.get(0)).equals("2:3") && suspended.compareAndSet(false, true)) {
                  context.setSuspendCurrentQueueTimeMillis(500);
                  return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                batch.forEach(inbox::add);
                return ConsumeOrderlyStatus.SUCCESS;
              });
      consumer.start();
      Map<String, List<String>> sequences = new TreeMap<>();
      for (MessageExt message : inbox.take(32, 90)) {
        String[] parts = Kit.text(message).split(":");
        sequences.computeIfAbsent(parts[0], key -> new ArrayList<>()).add(parts[1]);
      }
      for (List<String> sequence : sequences.values()) {
        Matrix.same("order", List.of("0", "1", "2", "3", "4", "5", "6", "7"), sequence);
      }
      Matrix.that(suspended.get(), "no message was suspended");
      inbox.nothingElse(500);
      return "";
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }

  private static String delay(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    Kit.Inbox inbox = new Kit.Inbox();
    try {
      consumer.subscribe(topic, "*");
      consumer.registerMessageListener(inbox);
      consumer.start();
      Message message = Kit.message(topic, "after 5 s");
      message.setDelayTimeLevel(2);
      long start = System.currentTimeMillis();
      producer.send(message);
      MessageExt seen = inbox.take(1, SECONDS).get(0);
      long after = System.currentTimeMillis() - start;
      Matrix.that(after >= 4_900 && after < 20_000, "delivered after " + after + " ms, not 5 s");
      Matrix.same("level", 2, seen.getDelayTimeLevel());
      inbox.nothingElse(500);
      return Kit.names(seen.getProperties());
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }

  private static String retry(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    Kit.Inbox inbox = new Kit.Inbox();
    try {
      consumer.subscribe(topic, "*");
      consumer.registerMessageListener(
          (MessageListenerConcurrently)
              (batch, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                batch.forEach(inbox::add);
                return batch.get(0).getReconsumeTimes() < 2
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
              });
      consumer.start();
      SendResult sent = producer.send(Kit.message(topic, "again"));
      List<MessageExt> seen = inbox.take(3, SECONDS);
      for (int i = 0; i < 3; i++) {
        Matrix.same("times", i, seen.get(i).getReconsumeTimes());
        Matrix.same("topic", topic, seen.get(i).getTopic());
        Matrix.same("id", sent.getMsgId(), seen.get(i).getMsgId());
        Matrix.same("body", "again", Kit.text(seen.get(i)));
      }
      inbox.nothingElse(2_000);
      return Kit.names(seen.get(2).getProperties());
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }

  private static String deadLetter(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    DefaultMQPullConsumer reader = Lookups.pull("reader_" + topic);
    Kit.Inbox inbox = new Kit.Inbox();
    try {
      consumer.subscribe(topic, "*");
      consumer.setMaxReconsumeTimes(1);
      consumer.registerMessageListener(
          (MessageListenerConcurrently)
              (batch, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                batch.forEach(inbox::add);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
              });
      consumer.start();
      SendResult sent = producer.send(Kit.message(topic, "never"));
      Matrix.same("times", 1, inbox.take(2, SECONDS).get(1).getReconsumeTimes());
      MessageQueue queue = Kit.eventually(40, () -> reader.fetchSubscribeMessageQueues(DEAD + topic).iterator().next());
      MessageExt dead =
          Kit.eventually(
              20,
              () -> {
                PullResult result = reader.pull(queue, "*", 0, 32);
                return result.getMsgFoundList() == null ? null : result.getMsgFoundList().get(0);
              });
      Matrix.same("body", "never", Kit.text(dead));
      Matrix.same("id", sent.getMsgId(), dead.getMsgId());
      Matrix.same("topic", DEAD + topic, dead.getTopic());
      inbox.nothingElse(2_000);
      return "times=" + dead.getReconsumeTimes() + " " + Kit.names(dead.getProperties());
    } finally {
      consumer.shutdown();
      reader.shutdown();
      producer.shutdown();
    }
  }

  private static String broadcast(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    List<Kit.Inbox> inboxes = new ArrayList<>();
    try {
      for (int i = 0; i < 2; i++) {
        DefaultMQPushConsumer consumer = Kit.push(topic);
        consumer.setInstanceName("broadcast" + i);
        Kit.setEnum(consumer, "setMessageModel", "BROADCASTING");
        inboxes.add(new Kit.Inbox());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inboxes.get(i));
        consumer.start();
        consumers.add(consumer);
      }
      List<String> expected = new ArrayList<>();
      for (int i = 10; i < 18; i++) {
        producer.send(Kit.message(topic, "to all " + i));
        expected.add("to all " + i);
      }
      for (Kit.Inbox inbox : inboxes) {
        Matrix.same("bodies", expected, Kit.bodies(inbox.take(8, SECONDS)));
        inbox.nothingElse(500);
      }
      return "";
    } finally {
      consumers.forEach(DefaultMQPushConsumer::shutdown);
      producer.shutdown();
    }
  }
}
