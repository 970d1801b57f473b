package matrix;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.annotation.RocketMQMessageListener;
import org.apache.rocketmq.client.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.core.RocketMQClientTemplate;
import org.apache.rocketmq.client.core.RocketMQListener;
import org.apache.rocketmq.client.core.RocketMQTransactionChecker;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/** RocketMQ's starter for Spring Boot over gRPC: one topic, one group and one listener for each check. */
@SpringBootApplication
public class SpringV5 {
    private static final Checks CHECKS = new Checks();
    private static final Duration DELAY = Duration.ofSeconds(3);
    /** A client that connects to a busy server within its default of 3 s starts, another one does not. */
    private static final int REQUEST_S = 15;

    public static void main(String[] args) throws Exception {
        String endpoint = System.getenv("MATRIX_ENDPOINT");
        SpringApplication application = new SpringApplication(SpringV5.class);
        application.setDefaultProperties(Map.ofEntries(
            Map.entry("rocketmq.producer.endpoints", endpoint),
            Map.entry("rocketmq.producer.topic", Checks.topic("transaction")),
            Map.entry("rocketmq.producer.ssl-enabled", "false"),
            Map.entry("rocketmq.producer.request-timeout", REQUEST_S),
            Map.entry("rocketmq.push-consumer.endpoints", endpoint),
            Map.entry("rocketmq.push-consumer.access-key", ""),
            Map.entry("rocketmq.push-consumer.secret-key", ""),
            Map.entry("rocketmq.push-consumer.tag", "*"),
            Map.entry("rocketmq.simple-consumer.endpoints", endpoint),
            Map.entry("rocketmq.simple-consumer.consumer-group", Checks.topic("simple")),
            Map.entry("rocketmq.simple-consumer.topic", Checks.topic("simple")),
            Map.entry("rocketmq.simple-consumer.await-duration", "5"),
            Map.entry("rocketmq.simple-consumer.tag", "*"),
            Map.entry("rocketmq.simple-consumer.filter-expression-type", "tag"),
            Map.entry("rocketmq.simple-consumer.request-timeout", REQUEST_S),
            Map.entry("rocketmq.simple-consumer.ssl-enabled", "false")));
        ConfigurableApplicationContext context = application.run(args);
        RocketMQClientTemplate template = context.getBean(RocketMQClientTemplate.class);
        CHECKS.start("send", () -> send(template));
        CHECKS.start("async", () -> async(template));
        CHECKS.start("tags", () -> tags(template));
        CHECKS.start("sql", () -> sql(template));
        CHECKS.start("order", () -> order(template));
        CHECKS.start("delay", () -> delay(template));
        CHECKS.start("transaction", () -> transaction(template));
        CHECKS.start("retry", () -> retry(template));
        CHECKS.start("simple", () -> simple(template));
        CHECKS.end();
    }

    private static void isSent(SendReceipt receipt) {
        Checks.expect(receipt.getMessageId() != null, "the send has no message id");
    }

    private static String send(RocketMQClientTemplate template) throws Exception {
        isSent(template.syncSendNormalMessage(Checks.topic("send"), "one"));
        isSent(template.syncSendNormalMessage(Checks.topic("send"), "two".getBytes(StandardCharsets.UTF_8)));
        template.convertAndSend(Checks.topic("send"), "three");
        return CHECKS.receives("send", List.of("one", "two", "three"));
    }

    private static String async(RocketMQClientTemplate template) throws Exception {
        CompletableFuture<SendReceipt> sent =
            template.asyncSendNormalMessage(Checks.topic("async"), "one", new CompletableFuture<>());
        isSent(sent.get(30, TimeUnit.SECONDS));
        return CHECKS.receives("async", List.of("one"));
    }

    private static String tags(RocketMQClientTemplate template) throws Exception {
        for (String tag : List.of("a", "b", "c")) {
            isSent(template.syncSendNormalMessage(Checks.topic("tags") + ":" + tag, tag));
        }
        return CHECKS.receives("tags", List.of("a", "c"));
    }

    private static String sql(RocketMQClientTemplate template) throws Exception {
        for (int each = 0; each < 6; each++) {
            isSent(template.syncSendNormalMessage(Checks.topic("sql"),
                MessageBuilder.withPayload("s" + each).setHeader("number", String.valueOf(each)).build()));
        }
        return CHECKS.receives("sql", List.of("s4", "s5"));
    }

    private static String order(RocketMQClientTemplate template) throws Exception {
        List<String> bodies = IntStream.range(0, 15).mapToObj(each -> "k" + each % 3 + "-" + (10 + each)).toList();
        for (String body : bodies) {
            isSent(template.syncSendFifoMessage(Checks.topic("order"), body, body.substring(0, 2)));
        }
        CHECKS.receives("order", bodies);
        Map<String, String> last = new HashMap<>();
        for (String body : CHECKS.bodies("order")) {
            String before = last.put(body.substring(0, 2), body);
            Checks.expect(before == null || before.compareTo(body) < 0, body + " came after " + before);
        }
        return "3 keys in order";
    }

    private static String delay(RocketMQClientTemplate template) throws Exception {
        long start = System.currentTimeMillis();
        isSent(template.syncSendDelayMessage(Checks.topic("delay"), "late", DELAY));
        CHECKS.receives("delay", List.of("late"));
        long took = CHECKS.received("delay").get(0).atMs() - start;
        Checks.expect(took >= DELAY.toMillis() - 1_000, "it came after " + took + " ms");
        return "a duration";
    }

    private static String transaction(RocketMQClientTemplate template) throws Exception {
        String topic = Checks.topic("transaction");
        template.sendMessageInTransaction(topic, "commit").getTransaction().commit();
        template.sendMessageInTransaction(topic, "rollback").getTransaction().rollback();
        template.sendMessageInTransaction(topic, "asked-commit");
        template.sendMessageInTransaction(topic, "asked-rollback");
        return CHECKS.receives("transaction", List.of("commit", "asked-commit"));
    }

    private static String retry(RocketMQClientTemplate template) throws Exception {
        isSent(template.syncSendNormalMessage(Checks.topic("retry"), "first"));
        CHECKS.receives("retry", List.of("first attempt 1", "first attempt 2"));
        return "received again, with its attempt";
    }

    private static String simple(RocketMQClientTemplate template) throws Exception {
        isSent(template.syncSendNormalMessage(Checks.topic("simple"), "one"));
        for (int round = 0; round < 10 && CHECKS.bodies("simple").isEmpty(); round++) {
            for (MessageView message : template.receive(8, Duration.ofSeconds(30))) {
                CHECKS.add("simple", body(message));
                template.ack(message);
            }
        }
        return CHECKS.receives("simple", List.of("one"));
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    /** What all listeners do with a message. */
    private abstract static class Listener implements RocketMQListener {
        private final String check;

        Listener(String check) {
            this.check = check;
        }

        @Override
        public ConsumeResult consume(MessageView message) {
            CHECKS.add(check, body(message));
            return ConsumeResult.SUCCESS;
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "send_${MATRIX_RUN}", consumerGroup = "send_${MATRIX_RUN}",
        requestTimeout = REQUEST_S)
    static class Send extends Listener {
        Send() {
            super("send");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "async_${MATRIX_RUN}", consumerGroup = "async_${MATRIX_RUN}",
        requestTimeout = REQUEST_S)
    static class Async extends Listener {
        Async() {
            super("async");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "tags_${MATRIX_RUN}", consumerGroup = "tags_${MATRIX_RUN}",
        tag = "a || c", requestTimeout = REQUEST_S)
    static class Tags extends Listener {
        Tags() {
            super("tags");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "sql_${MATRIX_RUN}", consumerGroup = "sql_${MATRIX_RUN}",
        tag = "number > 3", filterExpressionType = "sql92", requestTimeout = REQUEST_S)
    static class Sql extends Listener {
        Sql() {
            super("sql");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "order_${MATRIX_RUN}", consumerGroup = "order_${MATRIX_RUN}",
        requestTimeout = REQUEST_S)
    static class Order extends Listener {
        Order() {
            super("order");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "delay_${MATRIX_RUN}", consumerGroup = "delay_${MATRIX_RUN}",
        requestTimeout = REQUEST_S)
    static class Delay extends Listener {
        Delay() {
            super("delay");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "transaction_${MATRIX_RUN}", consumerGroup = "transaction_${MATRIX_RUN}",
        requestTimeout = REQUEST_S)
    static class Transaction extends Listener {
        Transaction() {
            super("transaction");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "retry_${MATRIX_RUN}", consumerGroup = "retry_${MATRIX_RUN}",
        requestTimeout = REQUEST_S)
    static class Retry implements RocketMQListener {
        @Override
        public ConsumeResult consume(MessageView message) {
            CHECKS.add("retry", body(message) + " attempt " + message.getDeliveryAttempt());
            return message.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        }
    }

    /** Ends a transaction that the broker asks about. */
    @RocketMQTransactionListener
    static class Ends implements RocketMQTransactionChecker {
        @Override
        public TransactionResolution check(MessageView message) {
            return body(message).endsWith("commit") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        }
    }
}
