import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.TopicStatsTable;
import org.apache.rocketmq.remoting.protocol.body.CMResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Makes the calls of rocketmq-exporter and of rocketmq-dashboard, by the classes through which both make them. */
public final class Matrix {
  private static final String NAMESRV = System.getenv("MATRIX_NAMESRV");
  private static final String RUN = System.getenv("MATRIX_RUN");
  private static final String TOPIC = "admin_" + RUN;
  private static final int MESSAGES = 12;
  private static final List<String> STATISTICS =
      List.of("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS", "GROUP_GET_SIZE");
  /** What the exporter reads of a broker and what the dashboard shows, as RocketMQ 5.5.0 answers it. */
  private static final List<String> RUNTIME =
      List.of(
          "bootTimestamp", "brokerActive", "brokerVersionDesc", "commitLogDirCapacity",
          "commitLogDiskRatio", "commitLogMaxOffset", "commitLogMinOffset", "consumeQueueDiskRatio",
          "dispatchBehindBytes", "dispatchMaxBuffer", "earliestMessageTimeStamp", "getFoundTps",
          "getMessageEntireTimeMax", "getMissTps", "getTotalTps", "getTransferredTps", "msgGetTotalTodayMorning",
          "msgGetTotalTodayNow", "msgGetTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow",
          "msgPutTotalYesterdayMorning", "pageCacheLockTimeMills", "pullThreadPoolQueueCapacity",
          "pullThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize", "putLatency99", "putLatency999",
          "putMessageAverageSize", "putMessageDistributeTime", "putMessageEntireTimeMax", "putMessageFailedTimes",
          "putMessageSizeTotal", "putMessageTimesTotal", "putTps", "queryThreadPoolQueueCapacity",
          "queryThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize", "remainHowManyDataToFlush",
          "remainTransientStoreBufferNumbs", "runtime", "sendThreadPoolQueueCapacity",
          "sendThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueSize", "startAcceptSendRequestTimeStamp",
          "timerCongestNum", "timerDequeueTps", "timerEnqueueTps", "timerOffsetBehind", "timerReadBehind");

  private final DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000);
  private final DefaultMQProducer producer = new DefaultMQProducer("producer_" + TOPIC);
  private final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(TOPIC);
  private final CountDownLatch consumed = new CountDownLatch(MESSAGES);
  private SendResult sent;
  private String broker;
  private String cluster;

  public static void main(String[] args) throws Exception {
    Matrix matrix = new Matrix();
    Map<String, Callable<Object>> checks = new LinkedHashMap<>();
    checks.put("cluster", matrix::clusterThere);
    checks.put("traffic", matrix::traffic);
    checks.put("topics", matrix::topics);
    checks.put("topic_stats", matrix::topicStats);
    checks.put("group_stats", matrix::groupStats);
    checks.put("connections", matrix::connections);
    checks.put("running_info", matrix::runningInfo);
    checks.put("statistics", matrix::statistics);
    checks.put("runtime", matrix::runtime);
    checks.put("options", matrix::options);
    checks.put("messages", matrix::messages);
    checks.put("consume_directly", matrix::consumeDirectly);
    checks.put("reset_offset", matrix::resetOffset);
    checks.put("create_and_delete", matrix::createAndDelete);
    checks.forEach(
        (name, check) -> {
          try {
            System.out.println("CHECK " + name + " ok " + check.call());
          } catch (Throwable failure) {
            System.out.println("CHECK " + name + " FAILED " + failure.toString().replace('\n', ' '));
          }
        });
    System.exit(0);
  }

  private static void that(boolean holds, String otherwise) {
    if (!holds) {
      throw new AssertionError(otherwise);
    }
  }

  /** Repeats a question until it has an answer. */
  private static <T> T eventually(Callable<T> question) throws Exception {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
    while (true) {
      try {
        T answer = question.call();
        if (answer != null) {
          return answer;
        }
        that(System.nanoTime() < end, "no answer after 30 s");
      } catch (Exception failure) {
        if (System.nanoTime() >= end) {
          throw failure;
        }
      }
      TimeUnit.MILLISECONDS.sleep(200);
    }
  }

  private Object clusterThere() throws Exception {
    admin.setNamesrvAddr(NAMESRV);
    admin.start();
    Map<String, Set<String>> clusters = admin.examineBrokerClusterInfo().getClusterAddrTable();
    that(clusters.size() == 1, "clusters: " + clusters);
    cluster = clusters.keySet().iterator().next();
    String name = clusters.get(cluster).iterator().next();
    broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().get(name).getBrokerAddrs().get(0L);
    that(admin.getNameServerAddressList().contains(NAMESRV), "name servers: " + admin.getNameServerAddressList());
    return clusters.size();
  }

  private Object traffic() throws Exception {
    producer.setNamesrvAddr(NAMESRV);
    producer.setInstanceName("producer");
    producer.setSendMsgTimeout(20_000);
    producer.start();
    consumer.setNamesrvAddr(NAMESRV);
    consumer.setInstanceName("consumer");
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.subscribe(TOPIC, "*");
    consumer.registerMessageListener(
        (MessageListenerConcurrently)
            (batch, context) -> {
              batch.forEach(message -> consumed.countDown());
              return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
    consumer.start();
    for (int i = 0; i < MESSAGES; i++) {
      sent = producer.send(new Message(TOPIC, "tag", "key" + i, ("body " + i).getBytes()));
    }
    that(consumed.await(50, TimeUnit.SECONDS), consumed.getCount() + " messages were not consumed");
    consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
    return MESSAGES;
  }

  private Object topics() throws Exception {
    that(admin.fetchAllTopicList().getTopicList().contains(TOPIC), "the topic is not in the list");
    that(admin.fetchTopicsByCLuster(cluster).getTopicList().contains(TOPIC), "the topic is not in the cluster's list");
    that(admin.getAllTopicConfig(broker, 20_000).getTopicConfigTable().containsKey(TOPIC), "no configuration");
    TopicConfig config = admin.examineTopicConfig(broker, TOPIC);
    that(config.getReadQueueNums() == 4 && config.getPerm() == 6, "configuration: " + config);
    that("NORMAL".equals(config.getAttributes().get("message.type")), "attributes: " + config.getAttributes());
    that(admin.getTopicClusterList(TOPIC).contains(cluster), "clusters: " + admin.getTopicClusterList(TOPIC));
    return admin.examineTopicRouteInfo(TOPIC).getQueueDatas().size();
  }

  private Object topicStats() throws Exception {
    TopicStatsTable table = admin.examineTopicStats(TOPIC);
    long messages =
        table.getOffsetTable().values().stream().mapToLong(each -> each.getMaxOffset() - each.getMinOffset()).sum();
    long last = table.getOffsetTable().values().stream().mapToLong(each -> each.getLastUpdateTimestamp()).max().getAsLong();
    that(table.getOffsetTable().size() == 4 && messages == MESSAGES, "offsets: " + table.getOffsetTable());
    that(Math.abs(System.currentTimeMillis() - last) < 600_000, "last update: " + last);
    return messages;
  }

  private Object groupStats() throws Exception {
    that(eventually(() -> admin.queryTopicConsumeByWho(TOPIC)).getGroupList().contains(TOPIC), "not among the groups");
    that(admin.queryTopicsByConsumer(TOPIC).getTopicList().contains(TOPIC), "not among the topics of its group");
    ConsumeStats stats =
        eventually(
            () -> {
              ConsumeStats found = admin.examineConsumeStats(TOPIC, TOPIC);
              return found.computeTotalDiff() == 0 && found.getOffsetTable().size() == 4 ? found : null;
            });
    that(stats.getOffsetTable().values().stream().anyMatch(each -> each.getLastTimestamp() > 0), "no time of consumption");
    that(admin.fetchConsumeStatsInBroker(broker, false, 20_000).getBrokerAddr() != null, "no broker in its statistics");
    that(admin.queryConsumeTimeSpan(TOPIC, TOPIC).size() == 4, "time spans: " + admin.queryConsumeTimeSpan(TOPIC, TOPIC));
    return stats.computeTotalDiff();
  }

  private Object connections() throws Exception {
    ConsumerConnection connection = eventually(() -> admin.examineConsumerConnectionInfo(TOPIC));
    that(connection.getConnectionSet().size() == 1, "connections: " + connection.getConnectionSet().size());
    that(connection.getConsumeType() == ConsumeType.CONSUME_PASSIVELY, "type: " + connection.getConsumeType());
    that(connection.getMessageModel() == MessageModel.CLUSTERING, "model: " + connection.getMessageModel());
    that(connection.getSubscriptionTable().keySet().contains(TOPIC), "no subscription");
    that(connection.computeMinVersion() > 400, "version " + connection.computeMinVersion());
    String group = producer.getProducerGroup();
    that(admin.examineProducerConnectionInfo(group, TOPIC).getConnectionSet().size() == 1, "no producer");
    that(admin.getAllProducerInfo(broker).getData().containsKey(group), "the producer is not among all");
    try {
      admin.examineConsumerConnectionInfo("offline_" + RUN);
      throw new AssertionError("a group without members has a connection");
    } catch (org.apache.rocketmq.client.exception.MQBrokerException absent) {
      return "offline: code " + absent.getResponseCode();
    } catch (org.apache.rocketmq.client.exception.MQClientException absent) {
      return "offline: code " + absent.getResponseCode();
    }
  }

  private String clientId() throws Exception {
    return admin.examineConsumerConnectionInfo(TOPIC).getConnectionSet().iterator().next().getClientId();
  }

  private Object runningInfo() throws Exception {
    ConsumerRunningInfo info = admin.getConsumerRunningInfo(TOPIC, clientId(), true);
    that(info.getMqTable().size() >= 4, "queues: " + info.getMqTable().keySet());
    that(info.getStatusTable().containsKey(TOPIC), "no status of the topic");
    that(info.getJstack() != null && info.getJstack().contains("TID"), "no stack of its threads");
    return info.getSubscriptionSet().size();
  }

  private Object statistics() throws Exception {
    for (String name : STATISTICS) {
      String key = name.startsWith("TOPIC") ? TOPIC : TOPIC + "@" + TOPIC;
      eventually(() -> admin.viewBrokerStatsData(broker, name, key).getStatsMinute());
    }
    eventually(() -> admin.viewBrokerStatsData(broker, "BROKER_PUT_NUMS", cluster).getStatsDay());
    return eventually(() -> admin.viewBrokerStatsData(broker, "BROKER_GET_NUMS", cluster).getStatsHour()) != null;
  }

  private Object runtime() throws Exception {
    Map<String, String> table = admin.fetchBrokerRuntimeStats(broker).getTable();
    Set<String> missing = new TreeSet<>(RUNTIME);
    missing.removeAll(table.keySet());
    that(missing.isEmpty(), "missing: " + missing);
    // The original shows fewer than three figures in its first minutes.
    Double.parseDouble(table.get("putTps").split(" ")[0]);
    that(Long.parseLong(table.get("commitLogMaxOffset")) > 0, "commitLogMaxOffset: " + table.get("commitLogMaxOffset"));
    Double.parseDouble(table.get("commitLogDiskRatio"));
    that(table.get("putMessageDistributeTime").contains("[<=0ms]"), table.get("putMessageDistributeTime"));
    that(table.get("commitLogDirCapacity").startsWith("Total : "), table.get("commitLogDirCapacity"));
    that(table.get("runtime").startsWith("[ "), table.get("runtime"));
    return "";
  }

  private Object options() throws Exception {
    that(admin.getBrokerConfig(broker).containsKey("brokerName"), "no brokerName among the options");
    that(!admin.getNameServerConfig(List.of(NAMESRV)).isEmpty(), "no options of the name server");
    that(admin.getAllSubscriptionGroup(broker, 20_000).getSubscriptionGroupTable().containsKey(TOPIC), "no group");
    return admin.examineSubscriptionGroupConfig(broker, TOPIC).getRetryMaxTimes();
  }

  private Object messages() throws Exception {
    MessageExt byKey =
        eventually(
            () -> admin.queryMessage(TOPIC, "key3", 64, 0, System.currentTimeMillis() + 60_000).getMessageList().get(0));
    that(new String(byKey.getBody()).equals("body 3"), "by key: " + byKey);
    MessageExt byId = eventually(() -> admin.viewMessage(TOPIC, sent.getMsgId()));
    that(byId.getMsgId().equals(sent.getMsgId()), "by id: " + byId);
    String track = eventually(() -> admin.messageTrackDetail(byId).get(0).getTrackType().name());
    that(track.equals("CONSUMED"), "track: " + track);
    return track;
  }

  private Object consumeDirectly() throws Exception {
    CMResult result = admin.consumeMessageDirectly(TOPIC, clientId(), TOPIC, sent.getMsgId()).getConsumeResult();
    that(result == CMResult.CR_SUCCESS, "result: " + result);
    return result;
  }

  private Object resetOffset() throws Exception {
    consumer.shutdown();
    Map<?, Long> offsets = admin.resetOffsetByTimestamp(TOPIC, TOPIC, 1_000, true);
    that(offsets.values().stream().mapToLong(each -> each).sum() == 0, "offsets: " + offsets);
    long behind = eventually(() -> admin.examineConsumeStats(TOPIC, TOPIC).computeTotalDiff() == MESSAGES ? MESSAGES : null);
    that(behind == MESSAGES, "behind: " + behind);
    return behind;
  }

  private Object createAndDelete() throws Exception {
    String made = "made_" + RUN;
    admin.createAndUpdateTopicConfig(broker, new TopicConfig(made, 3, 3, 6));
    SubscriptionGroupConfig group = new SubscriptionGroupConfig();
    group.setGroupName(made);
    group.setRetryMaxTimes(5);
    admin.createAndUpdateSubscriptionGroupConfig(broker, group);
    that(eventually(() -> admin.examineTopicConfig(broker, made)).getWriteQueueNums() == 3, "not 3 queues");
    that(admin.examineSubscriptionGroupConfig(broker, made).getRetryMaxTimes() == 5, "not 5 times");
    eventually(() -> admin.fetchAllTopicList().getTopicList().contains(made) ? true : null);
    admin.deleteTopicInBroker(Set.of(broker), made);
    admin.deleteTopicInNameServer(Set.of(NAMESRV), made);
    admin.deleteSubscriptionGroup(broker, made, true);
    that(!admin.fetchAllTopicList().getTopicList().contains(made), "the topic is there after it was deleted");
    that(!admin.getAllSubscriptionGroup(broker, 20_000).getSubscriptionGroupTable().containsKey(made), "the group is there");
    return "";
  }
}
