package matrix;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalRequestCallback;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/** RocketMQ's starter for Spring Boot over remoting: one topic, one group and one listener for each check. */
@SpringBootApplication
public class SpringBoot {
    private static final Checks CHECKS = new Checks();
    private static final long DELAY_MS = 3_000;

    public static void main(String[] args) throws Exception {
        SpringApplication application = new SpringApplication(SpringBoot.class);
        application.setDefaultProperties(Map.of(
            "rocketmq.name-server", System.getenv("MATRIX_NAMESRV"),
            "rocketmq.producer.group", Checks.topic("transaction"),
            "rocketmq.pull-consumer.group", Checks.topic("pull"),
            "rocketmq.pull-consumer.topic", Checks.topic("pull")));
        ConfigurableApplicationContext context = application.run(args);
        RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
        CHECKS.start("send", () -> send(template));
        CHECKS.start("async", () -> async(template));
        CHECKS.start("oneway", () -> oneway(template));
        CHECKS.start("batch", () -> batch(template));
        CHECKS.start("tags", () -> tags(template));
        CHECKS.start("sql", () -> sql(template));
        CHECKS.start("order", () -> order(template));
        CHECKS.start("delay", () -> delay(template));
        CHECKS.start("transaction", () -> transaction(template));
        CHECKS.start("retry", () -> retry(template));
        CHECKS.start("request", () -> request(template));
        CHECKS.start("pull", () -> pull(template));
        CHECKS.end();
    }

    private static void isSent(SendResult result) {
        Checks.expect(result.getSendStatus() == SendStatus.SEND_OK, "the send ended with " + result);
    }

    private static String send(RocketMQTemplate template) throws Exception {
        isSent(template.syncSend(Checks.topic("send"), "one"));
        isSent(template.syncSend(Checks.topic("send"), MessageBuilder.withPayload("two").build()));
        template.convertAndSend(Checks.topic("send"), "three");
        return CHECKS.receives("send", List.of("one", "two", "three"));
    }

    private static String async(RocketMQTemplate template) throws Exception {
        CompletableFuture<SendResult> sent = new CompletableFuture<>();
        template.asyncSend(Checks.topic("async"), "one", new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                sent.completeExceptionally(error);
            }
        });
        isSent(sent.get(30, TimeUnit.SECONDS));
        return CHECKS.receives("async", List.of("one"));
    }

    private static String oneway(RocketMQTemplate template) throws Exception {
        template.sendOneWay(Checks.topic("oneway"), "one");
        return CHECKS.receives("oneway", List.of("one"));
    }

    private static String batch(RocketMQTemplate template) throws Exception {
        List<String> bodies = IntStream.range(0, 20).mapToObj(each -> "b" + each).toList();
        List<Message<String>> messages = bodies.stream().map(each -> MessageBuilder.withPayload(each).build()).toList();
        isSent(template.syncSend(Checks.topic("batch"), messages));
        return CHECKS.receives("batch", bodies);
    }

    private static String tags(RocketMQTemplate template) throws Exception {
        for (String tag : List.of("a", "b", "c")) {
            isSent(template.syncSend(Checks.topic("tags") + ":" + tag, tag));
        }
        return CHECKS.receives("tags", List.of("a", "c"));
    }

    private static String sql(RocketMQTemplate template) throws Exception {
        for (int each = 0; each < 6; each++) {
            isSent(template.syncSend(
                Checks.topic("sql"), MessageBuilder.withPayload("s" + each).setHeader("number", each).build()));
        }
        return CHECKS.receives("sql", List.of("s4", "s5"));
    }

    private static String order(RocketMQTemplate template) throws Exception {
        List<String> bodies = IntStream.range(0, 15).mapToObj(each -> "k" + each % 3 + "-" + (10 + each)).toList();
        for (String body : bodies) {
            isSent(template.syncSendOrderly(Checks.topic("order"), body, body.substring(0, 2)));
        }
        CHECKS.receives("order", bodies);
        Map<String, String> last = new HashMap<>();
        for (String body : CHECKS.bodies("order")) {
            String before = last.put(body.substring(0, 2), body);
            Checks.expect(before == null || before.compareTo(body) < 0, body + " came after " + before);
        }
        return "3 keys in order";
    }

    private static String delay(RocketMQTemplate template) throws Exception {
        long start = System.currentTimeMillis();
        isSent(template.syncSend(Checks.topic("delay"), MessageBuilder.withPayload("level").build(), 3_000, 2));
        isSent(template.syncSendDelayTimeMills(Checks.topic("delay"), "duration", DELAY_MS));
        isSent(template.syncSendDeliverTimeMills(Checks.topic("delay"), "time", start + DELAY_MS));
        CHECKS.receives("delay", List.of("level", "duration", "time"));
        for (Checks.Received each : CHECKS.received("delay")) {
            long least = each.body().equals("level") ? 4_500 : DELAY_MS - 1_000;
            Checks.expect(each.atMs() - start >= least, each.body() + " came after " + (each.atMs() - start) + " ms");
        }
        return "a level, a duration and a time";
    }

    private static String transaction(RocketMQTemplate template) throws Exception {
        for (String body : List.of("commit", "rollback", "unknown-commit", "unknown-rollback")) {
            Message<String> message = MessageBuilder.withPayload(body).build();
            isSent(template.sendMessageInTransaction(Checks.topic("transaction"), message, null));
        }
        return CHECKS.receives("transaction", List.of("commit", "unknown-commit"));
    }

    private static String retry(RocketMQTemplate template) throws Exception {
        isSent(template.syncSend(Checks.topic("retry"), "first"));
        CHECKS.receives("retry", List.of("first", "first again"));
        return "received again";
    }

    private static String request(RocketMQTemplate template) throws Exception {
        CompletableFuture<String> answer = new CompletableFuture<>();
        template.sendAndReceive(Checks.topic("request"), "question", new RocketMQLocalRequestCallback<String>() {
            @Override
            public void onSuccess(String reply) {
                answer.complete(reply);
            }

            @Override
            public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        }, 30_000);
        String reply = answer.get(40, TimeUnit.SECONDS);
        Checks.expect(reply.equals("answer to question"), "the reply is " + reply);
        return reply;
    }

    private static String pull(RocketMQTemplate template) throws Exception {
        isSent(template.syncSend(Checks.topic("pull"), "one"));
        for (int round = 0; round < 30; round++) {
            template.receive(String.class, 2_000).forEach(body -> CHECKS.add("pull", body));
            if (!CHECKS.bodies("pull").isEmpty()) {
                break;
            }
        }
        return CHECKS.receives("pull", List.of("one"));
    }

    /** What all listeners do with a body. */
    private abstract static class Listener implements RocketMQListener<String> {
        private final String check;

        Listener(String check) {
            this.check = check;
        }

        @Override
        public void onMessage(String body) {
            CHECKS.add(check, body);
        }
    }

    @Component
    @RocketMQMessageListener(topic = "send_${MATRIX_RUN}", consumerGroup = "send_${MATRIX_RUN}")
    static class Send extends Listener {
        Send() {
            super("send");
        }
    }

    @Component
    @RocketMQMessageListener(topic = "async_${MATRIX_RUN}", consumerGroup = "async_${MATRIX_RUN}")
    static class Async extends Listener {
        Async() {
            super("async");
        }
    }

    @Component
    @RocketMQMessageListener(topic = "oneway_${MATRIX_RUN}", consumerGroup = "oneway_${MATRIX_RUN}")
    static class Oneway extends Listener {
        Oneway() {
            super("oneway");
        }
    }

    @Component
    @RocketMQMessageListener(topic = "batch_${MATRIX_RUN}", consumerGroup = "batch_${MATRIX_RUN}")
    static class Batch extends Listener {
        Batch() {
            super("batch");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "tags_${MATRIX_RUN}", consumerGroup = "tags_${MATRIX_RUN}", selectorExpression = "a || c")
    static class Tags extends Listener {
        Tags() {
            super("tags");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "sql_${MATRIX_RUN}", consumerGroup = "sql_${MATRIX_RUN}",
        selectorType = SelectorType.SQL92, selectorExpression = "number > 3")
    static class Sql extends Listener {
        Sql() {
            super("sql");
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "order_${MATRIX_RUN}", consumerGroup = "order_${MATRIX_RUN}", consumeMode = ConsumeMode.ORDERLY)
    static class Order extends Listener {
        Order() {
            super("order");
        }
    }

    @Component
    @RocketMQMessageListener(topic = "delay_${MATRIX_RUN}", consumerGroup = "delay_${MATRIX_RUN}")
    static class Delay extends Listener {
        Delay() {
            super("delay");
        }
    }

    @Component
    @RocketMQMessageListener(topic = "transaction_${MATRIX_RUN}", consumerGroup = "transaction_${MATRIX_RUN}_c")
    static class Transaction extends Listener {
        Transaction() {
            super("transaction");
        }
    }

    @Component
    @RocketMQMessageListener(topic = "retry_${MATRIX_RUN}", consumerGroup = "retry_${MATRIX_RUN}")
    static class Retry implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            if (CHECKS.add("retry", CHECKS.bodies("retry").isEmpty() ? body : body + " again") == 0
                && CHECKS.bodies("retry").size() == 1) {
                throw new IllegalStateException("the first attempt fails");
            }
        }
    }

    @Component
    @RocketMQMessageListener(topic = "request_${MATRIX_RUN}", consumerGroup = "request_${MATRIX_RUN}")
    static class Request implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String body) {
            return "answer to " + body;
        }
    }

    /** Ends a transaction as its body says: at once, or when it is asked. */
    @RocketMQTransactionListener
    static class Ends implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String body = body(message);
            return body.startsWith("unknown") ? RocketMQLocalTransactionState.UNKNOWN : end(body);
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            return end(body(message));
        }

        private static RocketMQLocalTransactionState end(String body) {
            return body.endsWith("commit")
                ? RocketMQLocalTransactionState.COMMIT : RocketMQLocalTransactionState.ROLLBACK;
        }

        private static String body(Message<?> message) {
            return message.getPayload() instanceof byte[] bytes ? new String(bytes) : message.getPayload().toString();
        }
    }
}
