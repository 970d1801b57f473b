import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What clients have since 4.6: lite pull, request and reply, namespaces, traces. */
final class Newer {
  private static final int SECONDS = 60;

  private Newer() {}

  static void addTo(Matrix matrix) {
    matrix.add("lite_pull", Newer::litePull);
    matrix.add("request_reply", Newer::requestReply);
    matrix.add("namespace", Newer::namespace);
    matrix.add("trace", Newer::trace);
  }

  private static DefaultLitePullConsumer lite(String group) {
    DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
    consumer.setNamesrvAddr(Matrix.NAMESRV);
    consumer.setInstanceName("lite_" + group + System.nanoTime());
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setVipChannelEnabled(false);
    consumer.setAutoCommit(false);
    return consumer;
  }

  private static String litePull(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultLitePullConsumer subscribed = lite(topic);
    DefaultLitePullConsumer assigned = lite(topic);
    try {
      List<String> expected = new ArrayList<>();
      for (int i = 10; i < 30; i++) {
        producer.send(Kit.message(topic, "body " + i));
        expected.add("body " + i);
      }
      subscribed.subscribe(topic, "*");
      subscribed.start();
      Matrix.same("subscribed", expected, poll(subscribed, 20));
      subscribed.commitSync();
      subscribed.shutdown();
      assigned.start();
      List<MessageQueue> queues = new ArrayList<>(assigned.fetchMessageQueues(topic));
      assigned.assign(queues);
      long committed = 0;
      for (MessageQueue queue : queues) {
        committed += Math.max(0, assigned.committed(queue));
        assigned.seekToBegin(queue);
      }
      Matrix.same("committed", 20L, committed);
      Matrix.same("from the first", expected, poll(assigned, 20));
      return "";
    } finally {
      assigned.shutdown();
      producer.shutdown();
    }
  }

  private static List<String> poll(DefaultLitePullConsumer consumer, int count) {
    List<MessageExt> seen = new ArrayList<>();
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
    while (seen.size() < count && System.nanoTime() < end) {
      seen.addAll(consumer.poll(1_000));
    }
    return Kit.bodies(seen);
  }

  private static String requestReply(String topic) throws Exception {
    DefaultMQProducer asking = Kit.producer(topic);
    DefaultMQProducer answering = Kit.producer("answer_" + topic);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    try {
      consumer.subscribe(topic, "*");
      consumer.registerMessageListener(
          (MessageListenerConcurrently)
              (batch, context) -> {
                for (MessageExt question : batch) {
                  try {
                    byte[] answer = ("re: " + Kit.text(question)).getBytes();
                    answering.send(MessageUtil.createReplyMessage(question, answer));
                  } catch (Exception failure) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                  }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
              });
      consumer.start();
      // The answer comes over the connection of a producer whose heartbeat the broker has; the first may be too early.
      Message answer = Kit.eventually(90, () -> asking.request(Kit.message(topic, "question"), 20_000));
      Matrix.same("answer", "re: question", Kit.text(answer));
      return "";
    } finally {
      consumer.shutdown();
      answering.shutdown();
      asking.shutdown();
    }
  }

  private static String namespace(String topic) throws Exception {
    String space = "space" + Matrix.RUN;
    DefaultMQProducer producer = new DefaultMQProducer("producer_" + topic);
    Kit.prepare(producer);
    producer.setNamespace(space);
    DefaultMQPushConsumer consumer = Kit.push(topic);
    consumer.setNamespace(space);
    Kit.Inbox inbox = new Kit.Inbox();
    producer.start();
    try {
      consumer.subscribe(topic, "*");
      consumer.registerMessageListener(inbox);
      consumer.start();
      Sends.good(producer.send(Kit.message(topic, "in a namespace")));
      MessageExt seen = inbox.take(1, 90).get(0);
      Matrix.same("topic as the consumer sees it", topic, seen.getTopic());
      List<MessageExt> stored = Kit.eventually(20, () -> List.of(producer.viewMessage(space + "%" + topic, seen.getMsgId())));
      Matrix.same("body", "in a namespace", Kit.text(stored.get(0)));
      return "";
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }

  private static String trace(String topic) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer("producer_" + topic, null, true, null);
    Kit.prepare(producer);
    producer.start();
    try {
      String id = producer.send(new Message(topic, "tag", "traced", "traced".getBytes())).getMsgId();
      // The dispatcher of traces sends them a few seconds later, to a topic that the broker makes on first use.
      List<MessageExt> traces = Kit.eventually(60, () -> Lookups.query(producer, "RMQ_SYS_TRACE_TOPIC", id, 1));
      Matrix.that(Kit.text(traces.get(0)).startsWith("Pub"), "trace: " + Kit.text(traces.get(0)));
      return "";
    } finally {
      producer.shutdown();
    }
  }
}
