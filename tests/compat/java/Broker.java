import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A whole broker of Apache RocketMQ, on ports that are free and without a name server.
 *
 * <pre>
 * topic NAME TOPIC QUEUES ATTRIBUTE=VALUE…   makes a topic
 * group NAME GROUP RETRIES                   makes a consumer group
 * end NAME TOPIC                             messages queue 0 of the topic has had
 * address NAME                               where it listens
 * commit NAME GROUP TOPIC QUEUE OFFSET       sets what the group reads next
 * committed NAME GROUP TOPIC QUEUE           answers it
 * persist NAME                               writes consumers' offsets and the progress of delays now
 * names NAME                                 topics with their queues, then groups with their retries
 * </pre>
 */
final class Broker extends Opened {
  private final BrokerController controller;

  private Broker(BrokerController controller) {
    super(controller.getMessageStore());
    this.controller = controller;
  }

  static Broker start(String directory, String[] options) throws Exception {
    BrokerConfig config = new BrokerConfig();
    config.setBrokerName("broker-a");
    config.setBrokerIP1("127.0.0.1");
    config.setBrokerIP2("127.0.0.1");
    config.setEnablePropertyFilter(true);
    // Its service of these files keeps a core busy for the first of these intervals, which is ten seconds.
    config.setTransactionMetricFlushInterval(100);
    NettyServerConfig server = new NettyServerConfig();
    server.setListenPort(0);
    MessageStoreConfig store = Opened.config(directory, options);
    BrokerController controller = new BrokerController(config, server, new NettyClientConfig(), store);
    if (!controller.initialize()) {
      controller.shutdown();
      throw new IllegalStateException("the broker does not load");
    }
    controller.start();
    return new Broker(controller);
  }

  @Override
  void close() {
    controller.shutdown();
  }

  @Override
  String answer(String command, String[] args) throws Exception {
    switch (command) {
      case "topic":
        TopicConfig topic = new TopicConfig(args[0], Integer.parseInt(args[1]), Integer.parseInt(args[1]), 6);
        for (int at = 2; at < args.length; at++) {
          String[] pair = args[at].split("=");
          topic.getAttributes().put("+" + pair[0], pair[1]);
        }
        controller.getTopicConfigManager().updateTopicConfig(topic);
        return "";
      case "group":
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(args[0]);
        group.setRetryMaxTimes(Integer.parseInt(args[1]));
        controller.getSubscriptionGroupManager().updateSubscriptionGroupConfig(group);
        return "";
      case "end":
        return String.valueOf(controller.getMessageStore().getMaxOffsetInQueue(args[0], 0));
      case "address":
        return "127.0.0.1:" + controller.getRemotingServer().localListenPort();
      case "commit":
        controller
            .getConsumerOffsetManager()
            .commitOffset("peer", args[0], args[1], Integer.parseInt(args[2]), Long.parseLong(args[3]));
        return "";
      case "committed":
        return String.valueOf(controller.getConsumerOffsetManager().queryOffset(args[0], args[1], Integer.parseInt(args[2])));
      case "persist":
        controller.getConsumerOffsetManager().persist();
        controller.getScheduleMessageService().persist();
        return "";
      case "names":
        return names();
      default:
        return super.answer(command, args);
    }
  }

  private String names() {
    List<String> names = new ArrayList<>();
    controller.getTopicConfigManager().getTopicConfigTable().values().forEach(
        topic -> names.add(topic.getTopicName() + "=" + topic.getReadQueueNums() + topic.getAttributes()));
    controller.getSubscriptionGroupManager().getSubscriptionGroupTable().values().forEach(
        group -> names.add("group " + group.getGroupName() + "=" + group.getRetryMaxTimes()));
    return String.join("\t", new TreeSet<>(names));
  }
}
