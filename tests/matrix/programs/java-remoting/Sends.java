import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Ways to send: alone, in batches, compressed, and up to the largest body. */
final class Sends {
  private static final int LARGE = 4 << 20;
  private static final int MESSAGE_ILLEGAL = 13;

  private Sends() {}

  static void addTo(Matrix matrix) {
    matrix.add("send", Sends::send);
    matrix.add("batch", Sends::batch);
    matrix.add("compressed", Sends::compressed);
    matrix.add("big_body", Sends::bigBody);
  }

  private static String send(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    try {
      List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
      MessageQueue first = queues.get(0);
      SendResult direct = producer.send(Kit.message(topic, "to a queue"), first);
      good(direct);
      Matrix.same("queue", first, direct.getMessageQueue());
      good(producer.send(Kit.message(topic, "synchronous")));
      good(producer.send(Kit.message(topic, "chosen"), (all, message, key) -> all.get((Integer) key % all.size()), 1));
      good(asynchronous(producer, topic));
      producer.sendOneway(Kit.message(topic, "one way"));
      Kit.eventually(20, () -> stored(producer, queues) == 5 ? true : null);
      return queues.size() + " queues";
    } finally {
      producer.shutdown();
    }
  }

  private static long stored(DefaultMQProducer producer, List<MessageQueue> queues) throws Exception {
    long sum = 0;
    for (MessageQueue queue : queues) {
      sum += producer.maxOffset(queue) - producer.minOffset(queue);
    }
    return sum;
  }

  static void good(SendResult result) {
    Matrix.same("status", SendStatus.SEND_OK, result.getSendStatus());
    Matrix.that(result.getMsgId() != null && result.getMsgId().length() >= 32, "message id: " + result.getMsgId());
    Matrix.that(result.getOffsetMsgId().length() == 32, "offset id: " + result.getOffsetMsgId());
    Matrix.that(result.getQueueOffset() >= 0, "queue offset: " + result.getQueueOffset());
  }

  private static SendResult asynchronous(DefaultMQProducer producer, String topic) throws Exception {
    CountDownLatch done = new CountDownLatch(1);
    AtomicReference<SendResult> result = new AtomicReference<>();
    AtomicReference<Throwable> failure = new AtomicReference<>();
    producer.send(
        Kit.message(topic, "asynchronous"),
        new SendCallback() {
          @Override
          public void onSuccess(SendResult sent) {
            result.set(sent);
            done.countDown();
          }

          @Override
          public void onException(Throwable error) {
            failure.set(error);
            done.countDown();
          }
        });
    Matrix.that(done.await(20, TimeUnit.SECONDS), "no call back after 20 s");
    Matrix.that(failure.get() == null, "asynchronous: " + failure.get());
    return result.get();
  }

  private static String batch(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    Kit.Inbox inbox = new Kit.Inbox();
    try {
      List<Message> batch = new ArrayList<>();
      List<String> expected = new ArrayList<>();
      for (int i = 10; i < 20; i++) {
        Message message = Kit.message(topic, "batch " + i);
        message.setKeys("batch" + i);
        message.putUserProperty("number", String.valueOf(i));
        batch.add(message);
        expected.add("batch " + i);
      }
      SendResult result = producer.send(batch);
      Matrix.same("status", SendStatus.SEND_OK, result.getSendStatus());
      Matrix.same("ids", 10, result.getMsgId().split(",").length);
      Matrix.same("offset ids", 10, result.getOffsetMsgId().split(",").length);
      consumer.subscribe(topic, "*");
      consumer.registerMessageListener(inbox);
      consumer.start();
      List<MessageExt> seen = inbox.take(10, 40);
      Matrix.same("bodies", expected, Kit.bodies(seen));
      for (MessageExt message : seen) {
        Matrix.same("property", Kit.text(message), "batch " + message.getUserProperty("number"));
        Matrix.that(result.getMsgId().contains(message.getMsgId()), "id " + message.getMsgId());
      }
      return "";
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }

  private static String compressed(String topic) throws Exception {
    StringBuilder body = new StringBuilder();
    for (int i = 0; i < 5_000; i++) {
      body.append("ferromq ");
    }
    MessageExt seen = there(topic, body.toString().getBytes(), 4 << 20);
    Matrix.that(seen.getStoreSize() < 10_000, "stored in " + seen.getStoreSize() + " bytes");
    return "";
  }

  private static String bigBody(String topic) throws Exception {
    byte[] body = new byte[LARGE - (64 << 10)];
    new Random(1).nextBytes(body);
    there(topic, body, LARGE);
    try {
      there(topic, new byte[LARGE + 1], 2 * LARGE);
      throw new AssertionError("a body of " + (LARGE + 1) + " bytes is taken");
    } catch (MQBrokerException refused) {
      Matrix.same("code of a body above 4 MiB", MESSAGE_ILLEGAL, refused.getResponseCode());
    }
    return "";
  }

  /** Sends the body and returns the message as a consumer gets it. */
  private static MessageExt there(String topic, byte[] body, int limit) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer("producer_" + topic);
    Kit.prepare(producer);
    producer.setMaxMessageSize(limit);
    if (limit > LARGE) {
      producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
    }
    DefaultMQPushConsumer consumer = Kit.push(topic);
    Kit.Inbox inbox = new Kit.Inbox();
    producer.start();
    try {
      Sends.good(producer.send(new Message(topic, body)));
      consumer.subscribe(topic, "*");
      consumer.registerMessageListener(inbox);
      consumer.start();
      MessageExt seen = inbox.take(1, 60).get(0);
      Matrix.that(java.util.Arrays.equals(body, seen.getBody()), "another body of " + seen.getBody().length + " bytes");
      return seen;
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }
}
