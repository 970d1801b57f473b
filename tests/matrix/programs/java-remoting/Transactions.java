import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions: one committed, one rolled back, one decided when the broker asks. */
final class Transactions {
  private static final int CHECK_BACK_SECONDS = 120;

  private Transactions() {}

  static String transaction(String topic) throws Exception {
    TransactionMQProducer producer = new TransactionMQProducer("producer_" + topic, Kit.hook());
    Kit.prepare(producer);
    producer.setTransactionListener(
        new TransactionListener() {
          @Override
          public LocalTransactionState executeLocalTransaction(Message message, Object state) {
            return (LocalTransactionState) state;
          }

          @Override
          public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return Kit.text(message).equals("asked")
                ? LocalTransactionState.COMMIT_MESSAGE
                : LocalTransactionState.ROLLBACK_MESSAGE;
          }
        });
    DefaultMQPushConsumer consumer = Kit.push(topic);
    Kit.Inbox inbox = new Kit.Inbox();
    producer.start();
    try {
      consumer.subscribe(topic, "*");
      consumer.registerMessageListener(inbox);
      consumer.start();
      producer.sendMessageInTransaction(Kit.message(topic, "rolled back"), LocalTransactionState.ROLLBACK_MESSAGE);
      producer.sendMessageInTransaction(Kit.message(topic, "asked"), LocalTransactionState.UNKNOW);
      producer.sendMessageInTransaction(Kit.message(topic, "committed"), LocalTransactionState.COMMIT_MESSAGE);
      MessageExt committed = inbox.take(1, 30).get(0);
      Matrix.same("first", "committed", Kit.text(committed));
      List<MessageExt> asked = inbox.take(1, CHECK_BACK_SECONDS);
      Matrix.same("by check-back", "asked", Kit.text(asked.get(0)));
      // The broker may have checked once more before the answer arrived: then the message is there twice.
      inbox.nothingElseThan("asked", 2_000);
      return Kit.names(committed.getProperties()) + " " + Kit.names(asked.get(0).getProperties());
    } finally {
      consumer.shutdown();
      producer.shutdown();
    }
  }
}
