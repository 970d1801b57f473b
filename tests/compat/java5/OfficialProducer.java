import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * A producer.
 *
 * <pre>
 * send FILE ANSWERS     sends a message for each line of FILE: topic, body, and words NAME=VALUE; for each one it writes the
 *                       message's id and its recall handle to ANSWERS
 * recall TOPIC HANDLE   answers the id of the message that was recalled
 * checked               how often the broker asked back
 * </pre>
 *
 * The words: {@code tag}, {@code keys} (comma-joined), {@code group}, {@code at} (milliseconds since 1970),
 * {@code priority}, {@code repeat} (the body so many times), {@code transaction} ({@code commit}, {@code rollback} or
 * {@code open}); any other is a property.
 */
final class OfficialProducer implements Official.Driven {
  private final ClientServiceProvider provider = ClientServiceProvider.loadService();
  private final AtomicInteger checked = new AtomicInteger();
  private final Producer producer;

  private OfficialProducer(String[] args) throws Exception {
    TransactionResolution verdict = TransactionResolution.valueOf(args[2].toUpperCase(Locale.ROOT));
    producer = provider.newProducerBuilder()
        .setClientConfiguration(Official.configuration(args[0], args[1]))
        .setTopics(Arrays.copyOfRange(args, 3, args.length))
        .setTransactionChecker(message -> {
          checked.incrementAndGet();
          return verdict;
        })
        .build();
  }

  static OfficialProducer start(String[] args) throws Exception {
    return new OfficialProducer(args);
  }

  @Override
  public String answer(String command, String[] args) throws Exception {
    switch (command) {
      case "send":
        List<String> answers = new ArrayList<>();
        for (String line : Files.readAllLines(Paths.get(args[0]))) {
          SendReceipt receipt = send(line.split("\t", -1));
          answers.add(receipt.getMessageId() + "\t" + (receipt.getRecallHandle() == null ? "" : receipt.getRecallHandle()));
        }
        Files.write(Paths.get(args[1]), answers);
        return "";
      case "recall":
        return producer.recallMessage(args[0], args[1]).getMessageId().toString();
      case "checked":
        return String.valueOf(checked.get());
      default:
        throw new IllegalArgumentException(command);
    }
  }

  private SendReceipt send(String[] words) throws Exception {
    MessageBuilder message = provider.newMessageBuilder().setTopic(words[0]);
    String body = words[1];
    String end = null;
    for (String word : Arrays.asList(words).subList(2, words.length)) {
      String name = word.substring(0, word.indexOf('='));
      String value = word.substring(word.indexOf('=') + 1);
      if (name.equals("repeat")) {
        body = body.repeat(Integer.parseInt(value));
      } else if (name.equals("transaction")) {
        end = value;
      } else {
        set(message, name, value);
      }
    }
    Message built = message.setBody(body.getBytes(StandardCharsets.UTF_8)).build();
    return end == null ? producer.send(built) : transact(built, end);
  }

  private static void set(MessageBuilder message, String name, String value) {
    switch (name) {
      case "tag":
        message.setTag(value);
        break;
      case "keys":
        message.setKeys(value.split(","));
        break;
      case "group":
        message.setMessageGroup(value);
        break;
      case "at":
        message.setDeliveryTimestamp(Long.parseLong(value));
        break;
      case "priority":
        message.setPriority(Integer.parseInt(value));
        break;
      default:
        message.addProperty(name, value);
    }
  }

  private SendReceipt transact(Message message, String end) throws Exception {
    Transaction transaction = producer.beginTransaction();
    SendReceipt receipt = producer.send(message, transaction);
    if (end.equals("commit")) {
      transaction.commit();
    } else if (end.equals("rollback")) {
      transaction.rollback();
    }
    return receipt;
  }

  @Override
  public void close() throws Exception {
    producer.close();
  }
}
