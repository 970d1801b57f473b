import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A producer. The body of message number i is {@code PREFIXi}, its key too, its tag {@code even} or {@code odd}, and its
 * property {@code number} is i.
 *
 * <pre>
 * send HOW TOPIC PREFIX COUNT SIZE   HOW: sync, async, oneway, batch (of SIZE), delayed (at level SIZE), timed (SIZE
 *                                    milliseconds later), large (so many bytes follow, which are compressed) or selector
 *                                    (message i to queue i modulo SIZE);
 *                                    answers how many were taken with SEND_OK
 * request TOPIC PREFIX COUNT         request and reply; answers the replies, comma-joined
 * transact TOPIC PREFIX COUNT        message i is committed, rolled back or unknown as i modulo 3 says
 * checked                            how often the broker asked back
 * </pre>
 */
final class Sender implements Clients.Driven {
  private final DefaultMQProducer producer;
  private final AtomicInteger checked = new AtomicInteger();

  private Sender(DefaultMQProducer producer) {
    this.producer = producer;
  }

  static Sender start(String command, String name, String[] args) throws Exception {
    boolean isTransactional = command.endsWith("transactions");
    DefaultMQProducer producer =
        isTransactional
            ? new TransactionMQProducer(args[1])
            : new DefaultMQProducer(args[1]);
    producer.setEnableTrace(command.startsWith("traced"));
    producer.setProducerGroup(Clients.group(producer, args[1]));
    Sender sender = new Sender(producer);
    producer.setNamesrvAddr(args[0]);
    producer.setInstanceName(name);
    producer.setSendMsgTimeout(20_000);
    // The default of 3 s is short where two cores are busy.
    producer.setMqClientApiTimeout(20_000);
    if (args.length > 2) {
      producer.setCompressType(CompressionType.of(args[2]));
    }
    if (isTransactional) {
      ((TransactionMQProducer) producer).setTransactionListener(sender.new Decisions());
    }
    producer.start();
    return sender;
  }

  @Override
  public String answer(String command, String[] args) throws Exception {
    switch (command) {
      case "send":
        return String.valueOf(send(args[0], args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4])));
      case "request":
        return request(args[0], args[1], Integer.parseInt(args[2]));
      case "transact":
        return String.valueOf(transact(args[0], args[1], Integer.parseInt(args[2])));
      case "checked":
        return String.valueOf(checked.get());
      default:
        throw new IllegalArgumentException(command);
    }
  }

  private static Message message(String topic, String prefix, int number) {
    String text = prefix + number;
    Message message = new Message(topic, number % 2 == 0 ? "even" : "odd", text, text.getBytes(StandardCharsets.UTF_8));
    message.putUserProperty("number", String.valueOf(number));
    return message;
  }

  private int send(String how, String topic, String prefix, int count, int size) throws Exception {
    switch (how) {
      case "sync":
        return inTurn(count, number -> producer.send(message(topic, prefix, number)));
      case "delayed":
        return inTurn(count, number -> {
          Message delayed = message(topic, prefix, number);
          delayed.setDelayTimeLevel(size);
          return producer.send(delayed);
        });
      case "timed":
        return inTurn(count, number -> {
          Message timed = message(topic, prefix, number);
          timed.setDelayTimeMs(size);
          return producer.send(timed);
        });
      case "large":
        return inTurn(count, number -> {
          Message large = message(topic, prefix, number);
          large.setBody((prefix + number + "x".repeat(size)).getBytes(StandardCharsets.UTF_8));
          return producer.send(large);
        });
      case "selector":
        return inTurn(count, number -> producer.send(
            message(topic, prefix, number), (queues, message, to) -> queues.get((int) to % queues.size()), number % size));
      case "batch":
        return batches(topic, prefix, count, size);
      case "async":
        return asynchronous(topic, prefix, count);
      case "oneway":
        for (int number = 0; number < count; number++) {
          producer.sendOneway(message(topic, prefix, number));
        }
        return count;
      default:
        throw new IllegalArgumentException(how);
    }
  }

  private interface Sending {
    SendResult send(int number) throws Exception;
  }

  private static int inTurn(int count, Sending sending) throws Exception {
    int taken = 0;
    for (int number = 0; number < count; number++) {
      taken += sending.send(number).getSendStatus() == SendStatus.SEND_OK ? 1 : 0;
    }
    return taken;
  }

  private int batches(String topic, String prefix, int count, int size) throws Exception {
    int taken = 0;
    for (int first = 0; first < count; first += size) {
      List<Message> batch = new ArrayList<>();
      for (int number = first; number < Math.min(first + size, count); number++) {
        batch.add(message(topic, prefix, number));
      }
      taken += producer.send(batch).getSendStatus() == SendStatus.SEND_OK ? batch.size() : 0;
    }
    return taken;
  }

  private int asynchronous(String topic, String prefix, int count) throws Exception {
    AtomicInteger taken = new AtomicInteger();
    AtomicReference<Throwable> failure = new AtomicReference<>();
    CountDownLatch answered = new CountDownLatch(count);
    for (int number = 0; number < count; number++) {
      producer.send(message(topic, prefix, number), new SendCallback() {
        @Override
        public void onSuccess(SendResult result) {
          taken.addAndGet(result.getSendStatus() == SendStatus.SEND_OK ? 1 : 0);
          answered.countDown();
        }

        @Override
        public void onException(Throwable thrown) {
          failure.set(thrown);
          answered.countDown();
        }
      });
    }
    if (!answered.await(120, TimeUnit.SECONDS)) {
      throw new IllegalStateException(answered.getCount() + " messages were not answered");
    }
    if (failure.get() != null) {
      throw new IllegalStateException(failure.get());
    }
    return taken.get();
  }

  private String request(String topic, String prefix, int count) throws Exception {
    List<String> replies = new ArrayList<>();
    for (int number = 0; number < count; number++) {
      Message reply = producer.request(message(topic, prefix, number), 20_000);
      replies.add(new String(reply.getBody(), StandardCharsets.UTF_8));
    }
    return String.join(",", replies);
  }

  private int transact(String topic, String prefix, int count) throws Exception {
    return inTurn(count, number -> producer.sendMessageInTransaction(message(topic, prefix, number), number));
  }

  @Override
  public void close() {
    producer.shutdown();
  }

  /** Commits, rolls back or leaves open, as the number says. */
  private final class Decisions implements TransactionListener {
    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object number) {
      switch ((int) number % 3) {
        case 0:
          return LocalTransactionState.COMMIT_MESSAGE;
        case 1:
          return LocalTransactionState.ROLLBACK_MESSAGE;
        default:
          return LocalTransactionState.UNKNOW;
      }
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
      checked.incrementAndGet();
      return LocalTransactionState.COMMIT_MESSAGE;
    }
  }
}
