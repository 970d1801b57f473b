import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reading at chosen places: by queue offset, time, key and id. */
final class Lookups {
  private Lookups() {}

  static void addTo(Matrix matrix) {
    matrix.add("pull", Lookups::fromQueue);
    matrix.add("no_progress", Lookups::noProgress);
    matrix.add("query_by_key", Lookups::byKey);
    matrix.add("query_by_id", Lookups::byId);
    matrix.add("from_timestamp", Lookups::fromTimestamp);
  }

  /** A started pull consumer. */
  static DefaultMQPullConsumer pull(String group) throws Exception {
    DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, Kit.hook());
    consumer.setNamesrvAddr(Matrix.NAMESRV);
    consumer.setInstanceName("pull_" + group);
    consumer.setVipChannelEnabled(false);
    consumer.start();
    return consumer;
  }

  private static String fromQueue(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPullConsumer consumer = pull(topic);
    try {
      MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);
      Matrix.same("queue there", true, consumer.fetchSubscribeMessageQueues(topic).contains(queue));
      Matrix.same("empty", PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 0, 1).getPullStatus());
      for (int i = 10; i < 50; i++) {
        producer.send(new Message(topic, i % 2 == 0 ? "even" : "odd", ("body " + i).getBytes()), queue);
      }
      Kit.eventually(20, () -> consumer.pull(queue, "*", 39, 1).getPullStatus() == PullStatus.FOUND ? true : null);
      PullResult found = consumer.pull(queue, "*", 0, 64);
      Matrix.same("status", PullStatus.FOUND, found.getPullStatus());
      Matrix.same("most of a pull", 32, found.getMsgFoundList().size());
      Matrix.same("next", 32L, found.getNextBeginOffset());
      Matrix.same("first", 0L, found.getMinOffset());
      PullResult even = consumer.pull(queue, "even", 30, 5);
      Matrix.same("even", "body 40", Kit.text(even.getMsgFoundList().get(0)));
      Matrix.same("none", PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 40, 8).getPullStatus());
      PullResult beyond = consumer.pull(queue, "*", 1_000, 8);
      Matrix.same("beyond", PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus());
      Matrix.same("beyond, next", 40L, beyond.getNextBeginOffset());
      consumer.updateConsumeOffset(queue, 17);
      consumer.getOffsetStore().persist(queue);
      Kit.eventually(20, () -> consumer.fetchConsumeOffset(queue, true) == 17 ? true : null);
      Matrix.same("max", 40L, consumer.maxOffset(queue));
      Matrix.same("min", 0L, consumer.minOffset(queue));
      Matrix.that(consumer.earliestMsgStoreTime(queue) > 1_600_000_000_000L, "no earliest store time");
      return "even " + even.getMsgFoundList().size() + ", next " + even.getNextBeginOffset();
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }

  private static String noProgress(String topic) throws Exception {
    DefaultMQPullConsumer consumer = pull(topic);
    try {
      for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
        Matrix.same("progress in an empty queue", -1L, consumer.fetchConsumeOffset(queue, true));
      }
      return "";
    } finally {
      consumer.shutdown();
    }
  }

  private static String byKey(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    try {
      for (int i = 0; i < 3; i++) {
        producer.send(new Message(topic, "tag", "shared single" + i, ("body " + i).getBytes()));
      }
      List<MessageExt> shared = Kit.eventually(30, () -> query(producer, topic, "shared", 3));
      Matrix.same("shared", List.of("body 0", "body 1", "body 2"), Kit.bodies(shared));
      Matrix.same("single", List.of("body 1"), Kit.bodies(Kit.eventually(20, () -> query(producer, topic, "single1", 1))));
      try {
        List<MessageExt> absent = producer.queryMessage(topic, "absent", 32, 0, Long.MAX_VALUE).getMessageList();
        Matrix.same("absent", 0, absent.size());
      } catch (org.apache.rocketmq.client.exception.MQClientException nothing) {
        return "absent: code " + nothing.getResponseCode();
      }
      return "";
    } finally {
      producer.shutdown();
    }
  }

  /** The messages of a key, or null when they are fewer than expected. */
  static List<MessageExt> query(DefaultMQProducer producer, String topic, String key, int expected) throws Exception {
    QueryResult result = producer.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
    return result.getMessageList().size() < expected ? null : result.getMessageList();
  }

  private static String byId(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    try {
      SendResult sent = producer.send(Kit.message(topic, "by id"));
      MessageExt byOffset = producer.viewMessage(topic, sent.getOffsetMsgId());
      Matrix.same("by offset id", "by id", Kit.text(byOffset));
      MessageExt byKey = Kit.eventually(30, () -> producer.viewMessage(topic, sent.getMsgId()));
      Matrix.same("by unique id", "by id", Kit.text(byKey));
      Matrix.same("ids", sent.getMsgId(), byKey.getMsgId());
      Matrix.same("queue offset", sent.getQueueOffset(), byKey.getQueueOffset());
      return Kit.names(byOffset.getProperties());
    } finally {
      producer.shutdown();
    }
  }

  private static String fromTimestamp(String topic) throws Exception {
    DefaultMQProducer producer = Kit.producer(topic);
    DefaultMQPullConsumer consumer = pull(topic);
    try {
      MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);
      long before = System.currentTimeMillis() - 60_000;
      long middle = 0;
      for (int i = 0; i < 6; i++) {
        if (i == 3) {
          TimeUnit.MILLISECONDS.sleep(1_500);
          middle = System.currentTimeMillis();
          TimeUnit.MILLISECONDS.sleep(1_500);
        }
        producer.send(Kit.message(topic, "body " + i), queue);
      }
      long from = middle;
      Kit.eventually(20, () -> consumer.searchOffset(queue, from) == 3 ? true : null);
      List<Long> offsets = new ArrayList<>();
      for (long time : new long[] {before, middle, System.currentTimeMillis() + 60_000}) {
        offsets.add(consumer.searchOffset(queue, time));
      }
      Matrix.same("offsets by time", List.of(0L, 3L, 6L), offsets);
      PullResult found = consumer.pull(queue, "*", consumer.searchOffset(queue, middle), 32);
      Matrix.same("bodies", List.of("body 3", "body 4", "body 5"), Kit.bodies(found.getMsgFoundList()));
      return "";
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }
}
