import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * A consumer that records its messages. It fails the first FAIL deliveries, so that they are redelivered.
 *
 * <pre>
 * await COUNT SECONDS   waits for COUNT messages in all; answers how many there are
 * taken FILE            writes a line for each: body, topic, broker, queue, queue offset, times before
 * queues                the queues it has, as BROKER:QUEUE
 * stop                  leaves the group; its messages can still be queried
 * </pre>
 */
final class Taker implements Clients.Driven {
  // By default 30 s, for which a client would wait here. A new group's retry topic is made by the first heartbeat, so its
  // route is there for the second look. And a client that got its queues while a heartbeat was under way leaves the next
  // one out: until there is another, the broker refuses its pulls for a subscription newer than the one it told.
  private static final int POLL_MILLIS = 1_000;

  private final List<MessageExt> taken = Collections.synchronizedList(new ArrayList<>());
  private final Semaphore arrived = new Semaphore(0);
  private final Semaphore failures;
  private DefaultMQPushConsumer push;
  private DefaultLitePullConsumer lite;
  private DefaultMQProducer replies;
  private final AtomicBoolean isClosed = new AtomicBoolean();
  private Thread polling;

  private Taker(int failures) {
    this.failures = new Semaphore(failures);
  }

  static Taker start(String command, String name, String[] args) throws Exception {
    Taker taker = new Taker(args.length > 4 ? Integer.parseInt(args[4]) : 0);
    if (command.equals("lite")) {
      taker.startLite(name, args);
    } else {
      taker.startPush(name, args, command.equals("replier"));
    }
    return taker;
  }

  private void startPush(String name, String[] args, boolean isReplying) throws Exception {
    String mode = isReplying ? "concurrent" : args[3];
    if (isReplying) {
      replies = new DefaultMQProducer(args[1].replace(":", "_") + "_replies");
      replies.setNamesrvAddr(args[0]);
      replies.setInstanceName(name + "_replies");
      replies.start();
    }
    push = new DefaultMQPushConsumer(args[1]);
    push.setConsumerGroup(Clients.group(push, args[1]));
    push.setNamesrvAddr(args[0]);
    push.setMqClientApiTimeout(20_000);
    push.setPollNameServerInterval(POLL_MILLIS);
    push.setHeartbeatBrokerInterval(POLL_MILLIS);
    push.setInstanceName(name);
    push.setEnableTrace(mode.equals("traced"));
    push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    push.setClientRebalance(!mode.equals("pop"));
    push.setMessageModel(mode.equals("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
    boolean isChoosing = args.length > 6;
    push.subscribe(args[2], isChoosing && args[5].equals("sql")
        ? MessageSelector.bySql(args[6]) : MessageSelector.byTag(isChoosing ? args[6] : "*"));
    if (mode.equals("orderly")) {
      push.setSuspendCurrentQueueTimeMillis(100);
      push.registerMessageListener((MessageListenerOrderly) (messages, context) ->
          take(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
    } else {
      push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
        // A second at delay level 1; in pop mode 10 s at level 0, the shortest.
        context.setDelayLevelWhenNextConsume(mode.equals("pop") ? 0 : 1);
        return take(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
      });
    }
    push.start();
  }

  private void startLite(String name, String[] args) throws Exception {
    lite = new DefaultLitePullConsumer(args[1]);
    lite.setNamesrvAddr(args[0]);
    lite.setMqClientApiTimeout(20_000);
    lite.setPollNameServerInterval(POLL_MILLIS);
    lite.setHeartbeatBrokerInterval(POLL_MILLIS);
    lite.setInstanceName(name);
    lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    lite.subscribe(args[2], "*");
    lite.start();
    polling = new Thread(() -> {
      while (!isClosed.get()) {
        take(lite.poll(200));
      }
    });
    polling.start();
  }

  private boolean take(List<MessageExt> messages) {
    if (failures.tryAcquire(messages.size())) {
      return false;
    }
    for (MessageExt message : messages) {
      if (replies != null) {
        try {
          byte[] body = ("re:" + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
          replies.send(MessageUtil.createReplyMessage(message, body), 10_000);
        } catch (Exception failure) {
          throw new IllegalStateException(failure);
        }
      }
      taken.add(message);
    }
    arrived.release(messages.size());
    return true;
  }

  @Override
  public String answer(String command, String[] args) throws Exception {
    switch (command) {
      case "await":
        int count = Integer.parseInt(args[0]);
        if (arrived.tryAcquire(count, Integer.parseInt(args[1]), TimeUnit.SECONDS)) {
          arrived.release(count);
        }
        return String.valueOf(taken.size());
      case "taken":
        List<String> lines = new ArrayList<>();
        synchronized (taken) {
          for (MessageExt message : taken) {
            lines.add(String.join("\t", new String(message.getBody(), StandardCharsets.UTF_8), message.getTopic(),
                message.getBrokerName(), String.valueOf(message.getQueueId()), String.valueOf(message.getQueueOffset()),
                String.valueOf(message.getReconsumeTimes())));
          }
        }
        Files.write(Paths.get(args[0]), lines);
        return "";
      case "queues":
        List<String> queues = new ArrayList<>();
        push.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().forEach(queue -> {
          if (!queue.getTopic().startsWith("%RETRY%")) {
            queues.add(queue.getBrokerName() + ":" + queue.getQueueId());
          }
        });
        Collections.sort(queues);
        return String.join(",", queues);
      case "stop":
        close();
        return "";
      default:
        throw new IllegalArgumentException(command);
    }
  }

  @Override
  public void close() throws Exception {
    if (isClosed.getAndSet(true)) {
      return;
    }
    if (polling != null) {
      polling.join();
    }
    if (push != null) {
      push.shutdown();
    }
    if (lite != null) {
      lite.shutdown();
    }
    if (replies != null) {
      replies.shutdown();
    }
  }
}
