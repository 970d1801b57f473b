import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** What the checks share: clients that are ready, bodies as text, and waiting for messages. */
final class Kit {
  static final int SEND_TIMEOUT_MS = 20_000;

  private Kit() {}

  /** A started producer of its own instance. */
  static DefaultMQProducer producer(String topic) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer("producer_" + topic, hook());
    prepare(producer);
    producer.start();
    return producer;
  }

  /** What signs requests with the run's keys, if there are any; versions before 4.4 have no such class. */
  static RPCHook hook() throws Exception {
    String accessKey = System.getenv("MATRIX_ACCESS_KEY");
    if (accessKey == null) {
      return null;
    }
    String secretKey = System.getenv("MATRIX_SECRET_KEY");
    Class<?> keys = Class.forName("org.apache.rocketmq.acl.common.SessionCredentials");
    Object pair = keys.getConstructor(String.class, String.class).newInstance(accessKey, secretKey);
    Class<?> hook = Class.forName("org.apache.rocketmq.acl.common.AclClientRPCHook");
    return (RPCHook) hook.getConstructor(keys).newInstance(pair);
  }

  static void prepare(DefaultMQProducer producer) {
    producer.setNamesrvAddr(Matrix.NAMESRV);
    producer.setInstanceName(producer.getProducerGroup());
    producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
    producer.setVipChannelEnabled(false);
  }

  /** A push consumer of the group that has the topic's name, from the first message; not started. */
  static DefaultMQPushConsumer push(String topic) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic, hook(), new AllocateMessageQueueAveragely());
    consumer.setNamesrvAddr(Matrix.NAMESRV);
    consumer.setInstanceName("push_" + topic);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setVipChannelEnabled(false);
    consumer.setConsumeThreadMin(2);
    consumer.setConsumeThreadMax(2);
    return consumer;
  }

  /** Calls a method whose enum argument moved to another package between versions. */
  static void setEnum(Object target, String method, String constant) throws Exception {
    for (Method candidate : target.getClass().getMethods()) {
      if (candidate.getName().equals(method) && candidate.getParameterCount() == 1) {
        Class<?> type = candidate.getParameterTypes()[0];
        for (Object value : type.getEnumConstants()) {
          if (value.toString().equals(constant)) {
            candidate.invoke(target, value);
            return;
          }
        }
      }
    }
    throw new AssertionError(method + "(" + constant + ") is missing in this version");
  }

  static Message message(String topic, String body) {
    return new Message(topic, body.getBytes());
  }

  static String text(Message message) {
    return new String(message.getBody());
  }

  /** Collects what a push consumer gets, in order. */
  static final class Inbox implements MessageListenerConcurrently {
    private final BlockingQueue<MessageExt> messages = new LinkedBlockingQueue<>();

    @Override
    public ConsumeConcurrentlyStatus consumeMessage(
        List<MessageExt> batch, org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext context) {
      messages.addAll(batch);
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    void add(MessageExt message) {
      messages.add(message);
    }

    /** The next so many messages; fails after so many seconds with the bodies that came. */
    List<MessageExt> take(int count, int seconds) throws InterruptedException {
      List<MessageExt> taken = new ArrayList<>();
      long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
      while (taken.size() < count) {
        MessageExt next = messages.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
        if (next == null) {
          throw new AssertionError(
              taken.size() + " of " + count + " messages after " + seconds + " s: " + bodies(taken));
        }
        taken.add(next);
      }
      return taken;
    }

    /** Fails when another message comes within so many milliseconds. */
    void nothingElse(int milliseconds) throws InterruptedException {
      nothingElseThan(null, milliseconds);
    }

    /** Fails when a message with another body comes within so many milliseconds. */
    void nothingElseThan(String body, int milliseconds) throws InterruptedException {
      TimeUnit.MILLISECONDS.sleep(milliseconds);
      for (MessageExt extra : messages) {
        Matrix.that(text(extra).equals(body), "one message too many: " + text(extra));
      }
    }
  }

  /** Sorted bodies, for comparisons. */
  static List<String> bodies(List<? extends Message> messages) {
    List<String> bodies = new ArrayList<>();
    for (Message message : messages) {
      bodies.add(message.getBody().length > 100 ? message.getBody().length + " bytes" : text(message));
    }
    bodies.sort(null);
    return bodies;
  }

  /** The sorted names of a message's properties. */
  static String names(Map<String, String> properties) {
    List<String> names = new ArrayList<>(properties.keySet());
    names.sort(null);
    return String.join(",", names);
  }

  /** Repeats a question until it has an answer or the seconds are over; the last failure is thrown. */
  static <T> T eventually(int seconds, java.util.concurrent.Callable<T> question) throws Exception {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
    while (true) {
      try {
        T answer = question.call();
        if (answer != null) {
          return answer;
        }
        Matrix.that(System.nanoTime() < end, "no answer after " + seconds + " s");
      } catch (Exception failure) {
        if (System.nanoTime() >= end) {
          throw failure;
        }
      }
      TimeUnit.MILLISECONDS.sleep(200);
    }
  }
}
