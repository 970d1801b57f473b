package matrix;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.MessageExt;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/** Spring Cloud Stream over its binder for RocketMQ: a consumer and an output binding for each check. */
@SpringBootApplication
public class SpringStream {
    private static final Checks CHECKS = new Checks();
    private static final List<String> NAMES =
        List.of("send", "async", "oneway", "tags", "sql", "order", "delay", "transaction", "retry", "broadcast");

    public static void main(String[] args) throws Exception {
        SpringApplication application = new SpringApplication(SpringStream.class);
        application.setDefaultProperties(properties());
        ConfigurableApplicationContext context = application.run(args);
        StreamBridge bridge = context.getBean(StreamBridge.class);
        for (String name : List.of("send", "async", "oneway", "broadcast")) {
            CHECKS.start(name, () -> plain(bridge, name));
        }
        CHECKS.start("tags", () -> tags(bridge));
        CHECKS.start("sql", () -> sql(bridge));
        CHECKS.start("order", () -> order(bridge));
        CHECKS.start("delay", () -> delay(bridge));
        CHECKS.start("transaction", () -> transaction(bridge));
        CHECKS.start("retry", () -> retry(bridge));
        CHECKS.end();
    }

    private static Map<String, Object> properties() {
        String bindings = "spring.cloud.stream.bindings.";
        String special = "spring.cloud.stream.rocketmq.bindings.";
        Map<String, Object> all = new HashMap<>();
        all.put("spring.cloud.stream.rocketmq.binder.name-server", System.getenv("MATRIX_NAMESRV"));
        all.put("spring.cloud.function.definition", String.join(";", NAMES));
        for (String name : NAMES) {
            all.put(bindings + name + "-in-0.destination", Checks.topic(name));
            all.put(bindings + name + "-in-0.group", Checks.topic(name));
            all.put(bindings + name + "-in-0.consumer.max-attempts", 1);
            all.put(special + name + "-in-0.consumer.consume-from-where", "CONSUME_FROM_FIRST_OFFSET");
            all.put(bindings + name + "-out-0.destination", Checks.topic(name));
            all.put(special + name + "-out-0.producer.group", "p_" + Checks.topic(name));
        }
        all.put(special + "async-out-0.producer.send-type", "Async");
        all.put(special + "oneway-out-0.producer.send-type", "OneWay");
        all.put(special + "broadcast-in-0.consumer.message-model", "BROADCASTING");
        all.put(special + "tags-in-0.consumer.subscription", "a || c");
        all.put(special + "sql-in-0.consumer.subscription", "sql:number > 3");
        all.put(special + "order-in-0.consumer.push.orderly", true);
        all.put(bindings + "order-out-0.producer.partition-key-expression", "headers['key']");
        all.put(bindings + "order-out-0.producer.partition-count", 4);
        // The binder's default is no retry: a message that failed goes to the dead letters at once.
        all.put(special + "retry-in-0.consumer.push.max-reconsume-times", 3);
        all.put(special + "retry-in-0.consumer.push.delay-level-when-next-consume", 1);
        all.put(special + "transaction-out-0.producer.producer-type", "Trans");
        all.put(special + "transaction-out-0.producer.transaction-listener", "ends");
        return all;
    }

    private static void send(StreamBridge bridge, String name, Message<String> message) {
        Checks.expect(bridge.send(name + "-out-0", message), "the binding did not take " + message);
    }

    private static void send(StreamBridge bridge, String name, String body) {
        send(bridge, name, MessageBuilder.withPayload(body).build());
    }

    private static String plain(StreamBridge bridge, String name) throws Exception {
        List<String> bodies = List.of("one", "two", "three");
        bodies.forEach(body -> send(bridge, name, body));
        return CHECKS.receives(name, bodies);
    }

    private static String tags(StreamBridge bridge) throws Exception {
        for (String tag : List.of("a", "b", "c")) {
            send(bridge, "tags", MessageBuilder.withPayload(tag).setHeader("TAGS", tag).build());
        }
        return CHECKS.receives("tags", List.of("a", "c"));
    }

    private static String sql(StreamBridge bridge) throws Exception {
        for (int each = 0; each < 6; each++) {
            send(bridge, "sql", MessageBuilder.withPayload("s" + each).setHeader("number", each).build());
        }
        return CHECKS.receives("sql", List.of("s4", "s5"));
    }

    private static String order(StreamBridge bridge) throws Exception {
        List<String> bodies = IntStream.range(0, 15).mapToObj(each -> "k" + each % 3 + "-" + (10 + each)).toList();
        for (String body : bodies) {
            send(bridge, "order", MessageBuilder.withPayload(body).setHeader("key", body.substring(0, 2)).build());
        }
        CHECKS.receives("order", bodies);
        Map<String, String> last = new HashMap<>();
        for (String body : CHECKS.bodies("order")) {
            String before = last.put(body.substring(0, 2), body);
            Checks.expect(before == null || before.compareTo(body) < 0, body + " came after " + before);
        }
        return "3 keys in order";
    }

    private static String delay(StreamBridge bridge) throws Exception {
        long start = System.currentTimeMillis();
        send(bridge, "delay", MessageBuilder.withPayload("level").setHeader("DELAY", 2).build());
        CHECKS.receives("delay", List.of("level"));
        long took = CHECKS.received("delay").get(0).atMs() - start;
        Checks.expect(took >= 4_500, "level 2 came after " + took + " ms");
        return "a level";
    }

    private static String transaction(StreamBridge bridge) throws Exception {
        for (String body : List.of("commit", "rollback", "unknown-commit", "unknown-rollback")) {
            send(bridge, "transaction", body);
        }
        return CHECKS.receives("transaction", List.of("commit", "unknown-commit"));
    }

    private static String retry(StreamBridge bridge) throws Exception {
        send(bridge, "retry", "first");
        CHECKS.receives("retry", List.of("first", "first again"));
        return "received again";
    }

    private static Consumer<Message<String>> listener(String check) {
        return message -> CHECKS.add(check, message.getPayload());
    }

    @Bean
    Consumer<Message<String>> send() {
        return listener("send");
    }

    @Bean
    Consumer<Message<String>> async() {
        return listener("async");
    }

    @Bean
    Consumer<Message<String>> oneway() {
        return listener("oneway");
    }

    @Bean
    Consumer<Message<String>> broadcast() {
        return listener("broadcast");
    }

    @Bean
    Consumer<Message<String>> tags() {
        return listener("tags");
    }

    @Bean
    Consumer<Message<String>> sql() {
        return listener("sql");
    }

    @Bean
    Consumer<Message<String>> order() {
        return listener("order");
    }

    @Bean
    Consumer<Message<String>> delay() {
        return listener("delay");
    }

    @Bean
    Consumer<Message<String>> transaction() {
        return listener("transaction");
    }

    @Bean
    Consumer<Message<String>> retry() {
        return message -> {
            if (CHECKS.bodies("retry").isEmpty()) {
                CHECKS.add("retry", message.getPayload());
                throw new IllegalStateException("the first attempt fails");
            }
            CHECKS.add("retry", message.getPayload() + " again");
        };
    }

    /** Ends a transaction as its body says: at once, or when it is asked. */
    @Bean
    TransactionListener ends() {
        return new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(
                    org.apache.rocketmq.common.message.Message message, Object argument) {
                String body = new String(message.getBody());
                return body.contains("unknown") ? LocalTransactionState.UNKNOW : end(body);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return end(new String(message.getBody()));
            }
        };
    }

    private static LocalTransactionState end(String body) {
        // The binding sends a text as JSON, in quotes.
        return body.contains("commit")
            ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }
}
