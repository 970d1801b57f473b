import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * RocketMQ's own client as the load on a broker. One line a figure goes to standard output: {@code WHO LOAD<TAB>VALUE<TAB>UNIT}.
 *
 * <pre>
 * WHO NAMESRV TOPIC send THREADS SIZE SECONDS          synchronous sends; rate and p99
 * WHO NAMESRV TOPIC batch THREADS SIZE SECONDS BATCH   batches
 * WHO NAMESRV TOPIC drain COUNT                        a new group consumes the topic from its beginning until it has COUNT
 * </pre>
 */
public final class ClientLoad {
  private static final int WARM_UP_MS = 3_000;

  public static void main(String[] args) throws Exception {
    String who = args[0];
    switch (args[3]) {
      case "send":
        send(who, args, 1);
        break;
      case "batch":
        send(who, args, Integer.parseInt(args[7]));
        break;
      case "drain":
        drain(who, args);
        break;
      default:
        throw new IllegalArgumentException(args[3]);
    }
    System.exit(0);
  }

  private static void send(String who, String[] args, int batch) throws Exception {
    int threads = Integer.parseInt(args[4]);
    int size = Integer.parseInt(args[5]);
    int seconds = Integer.parseInt(args[6]);
    DefaultMQProducer producer = new DefaultMQProducer("load");
    producer.setNamesrvAddr(args[1]);
    // Bodies stay as they are on both sides.
    producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
    producer.setSendMsgTimeout(30_000);
    producer.start();
    long begin = System.nanoTime() + WARM_UP_MS * 1_000_000L;
    long end = begin + seconds * 1_000_000_000L;
    AtomicLong failed = new AtomicLong();
    List<Sender> senders = new ArrayList<>();
    for (int number = 0; number < threads; number++) {
      Sender sender = new Sender(producer, args[2], size, batch, begin, end, failed);
      sender.start();
      senders.add(sender);
    }
    int count = 0;
    for (Sender sender : senders) {
      sender.join();
      count += sender.count;
    }
    producer.shutdown();
    if (failed.get() > 0) {
      throw new IllegalStateException(failed.get() + " sends failed");
    }
    long[] latencies = new long[count];
    int at = 0;
    for (Sender sender : senders) {
      System.arraycopy(sender.latencies, 0, latencies, at, sender.count);
      at += sender.count;
    }
    Arrays.sort(latencies);
    String load = batch == 1 ? threads + " threads, one a send" : threads + " threads, batches of " + batch;
    print(who, "java client: " + load, (double) count * batch / seconds, "msg/s");
    print(who, "java client: " + load + ", p99", latencies[(int) (count * 0.99)] / 1_000.0, "us");
  }

  private static void print(String who, String load, double value, String unit) {
    System.out.printf("%s %s\t%.1f\t%s%n", who, load, value, unit);
  }

  private static void drain(String who, String[] args) throws Exception {
    long wanted = Long.parseLong(args[4]);
    AtomicLong got = new AtomicLong();
    AtomicLong first = new AtomicLong();
    CountDownLatch done = new CountDownLatch(1);
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("drain-" + System.nanoTime());
    consumer.setNamesrvAddr(args[1]);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setPullBatchSize(32);
    consumer.setConsumeMessageBatchMaxSize(32);
    consumer.subscribe(args[2], "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      first.compareAndSet(0, System.nanoTime());
      if (got.addAndGet(messages.size()) >= wanted) {
        done.countDown();
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    done.await();
    double seconds = (System.nanoTime() - first.get()) / 1e9;
    print(who, "java client: consume a backlog", got.get() / seconds, "msg/s");
    consumer.shutdown();
  }

  /** One thread that sends until the time is over. */
  private static final class Sender extends Thread {
    private final DefaultMQProducer producer;
    private final String topic;
    private final byte[] body;
    private final int batch;
    private final long begin;
    private final long end;
    private final AtomicLong failed;
    private long[] latencies = new long[1 << 16];
    private int count;

    private Sender(
        DefaultMQProducer producer, String topic, int size, int batch, long begin, long end, AtomicLong failed) {
      this.producer = producer;
      this.topic = topic;
      this.body = new byte[size];
      Arrays.fill(this.body, (byte) 'x');
      this.batch = batch;
      this.begin = begin;
      this.end = end;
      this.failed = failed;
    }

    @Override
    public void run() {
      for (long before = System.nanoTime(); before < end; before = System.nanoTime()) {
        if (!isTaken()) {
          failed.incrementAndGet();
        } else if (before >= begin) {
          if (count == latencies.length) {
            latencies = Arrays.copyOf(latencies, count * 2);
          }
          latencies[count++] = System.nanoTime() - before;
        }
      }
    }

    private boolean isTaken() {
      try {
        if (batch == 1) {
          return producer.send(new Message(topic, body)).getSendStatus() == SendStatus.SEND_OK;
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int number = 0; number < batch; number++) {
          messages.add(new Message(topic, body));
        }
        return producer.send(messages).getSendStatus() == SendStatus.SEND_OK;
      } catch (Exception failure) {
        failure.printStackTrace();
        return false;
      }
    }
  }
}
