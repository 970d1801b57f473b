import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Producers that send one message after the other, each on a thread; of any version of RocketMQ's remoting client since 4.9.
 *
 * <pre>
 * start NAME NAMESRV TOPIC [KEY]   the bodies are KEY-0, KEY-1, …; with a key each goes to the queue of the key. A failed send
 *                                  is done again
 * stop NAME                        answers how many sends were taken and how many failed
 * </pre>
 */
public final class Rolling extends Thread {
  private static final long PAUSE_MS = 20;

  private final DefaultMQProducer producer;
  private final String topic;
  private final String key;
  private volatile boolean isEnded;
  private int taken;
  private int failed;

  private Rolling(String name, String namesrv, String topic, String key) {
    this.topic = topic;
    this.key = key;
    producer = new DefaultMQProducer("PG");
    producer.setNamesrvAddr(namesrv);
    producer.setInstanceName(name);
    // The default of 3 s is short where two cores are busy.
    producer.setSendMsgTimeout(20_000);
  }

  public static void main(String[] args) throws Exception {
    Map<String, Rolling> senders = new HashMap<>();
    Commands.serve((command, name, words) -> {
      if (command.equals("start")) {
        senders.put(name, new Rolling(name, words[0], words[1], words.length > 2 ? words[2] : null));
        senders.get(name).producer.start();
        senders.get(name).start();
        return "";
      }
      return senders.remove(name).end();
    });
  }

  private String end() throws InterruptedException {
    isEnded = true;
    join();
    producer.shutdown();
    return taken + "\t" + failed;
  }

  @Override
  public void run() {
    while (!isEnded) {
      try {
        SendResult result = send(new Message(topic, (key + "-" + taken).getBytes(StandardCharsets.UTF_8)));
        if (result.getSendStatus() != SendStatus.SEND_OK) {
          throw new IllegalStateException(result.toString());
        }
        taken++;
      } catch (Exception failure) {
        failure.printStackTrace();
        failed++;
      }
      try {
        Thread.sleep(PAUSE_MS);
      } catch (InterruptedException interrupted) {
        return;
      }
    }
  }

  private SendResult send(Message message) throws Exception {
    if (key == null) {
      return producer.send(message);
    }
    return producer.send(message, (all, sent, of) -> all.get(Math.floorMod(of.hashCode(), all.size())), key);
  }
}
