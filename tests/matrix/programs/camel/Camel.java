package matrix;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.rocketmq.RocketMQConstants;
import org.apache.camel.main.Main;

/** Camel's component for RocketMQ: a route that consumes for each check, and a template that sends. */
public final class Camel {
    private static final Checks CHECKS = new Checks();
    private static final String SEED = "seed";
    private static final List<String> BODIES = List.of("one", "two", "three");

    public static void main(String[] args) throws Exception {
        Main main = new Main();
        main.start();
        ProducerTemplate template = main.getCamelContext().createProducerTemplate();
        for (String name : List.of("send", "async", "tags", "sql", "request", "reply")) {
            seed(template, name);
        }
        main.getCamelContext().addRoutes(new Routes());
        CHECKS.start("send", () -> plain(template, "send", true));
        CHECKS.start("async", () -> plain(template, "async", false));
        CHECKS.start("tags", () -> tags(template));
        CHECKS.start("sql", () -> sql(template));
        CHECKS.start("request", () -> request(template));
        CHECKS.end();
    }

    /** The consumers. */
    private static final class Routes extends RouteBuilder {
        @Override
        public void configure() {
            consume("send", Map.of());
            consume("async", Map.of());
            consume("tags", Map.of("subscribeTags", "a || c"));
            consume("sql", Map.of("messageSelectorType", "sql", "subscribeSql", "TAGS = 'b' OR KEYS = 'k'"));
            from(uri("request", Map.of("consumerGroup", Checks.topic("request"))))
                .setBody(body().convertToString().append(" answered"))
                .setHeader(RocketMQConstants.OVERRIDE_MESSAGE_KEY, header(RocketMQConstants.KEY))
                .to(producer("reply", Map.of()));
        }

        private void consume(String check, Map<String, String> more) {
            Map<String, String> options = new TreeMap<>(more);
            options.put("consumerGroup", Checks.topic(check));
            from(uri(check, options)).filter(bodyAs(String.class).isNotEqualTo(SEED))
                .process(each -> CHECKS.add(check, each.getIn().getBody(String.class)));
        }
    }

    /**
     * Puts messages into each queue of a topic. The component's consumers begin at the end of a queue; the original
     * counts what arrives in an empty queue while a new group starts as before that end, and skips it.
     */
    private static void seed(ProducerTemplate template, String name) {
        String to = producer(name, Map.of("waitForSendResult", "true"));
        for (int each = 0; each < 8; each++) {
            template.sendBodyAndHeader(to, SEED, RocketMQConstants.OVERRIDE_MESSAGE_KEY, SEED);
        }
    }

    private static String uri(String name, Map<String, String> more) {
        StringBuilder uri = new StringBuilder("rocketmq:" + Checks.topic(name));
        uri.append("?namesrvAddr=").append(System.getenv("MATRIX_NAMESRV"));
        more.forEach((key, value) ->
            uri.append('&').append(key).append('=').append(URLEncoder.encode(value, StandardCharsets.UTF_8)));
        return uri.toString();
    }

    private static String producer(String name, Map<String, String> more) {
        Map<String, String> options = new TreeMap<>(more);
        options.put("producerGroup", "p_" + Checks.topic(name));
        return uri(name, options);
    }

    private static String plain(ProducerTemplate template, String name, boolean wait) throws Exception {
        String to = producer(name, Map.of("waitForSendResult", String.valueOf(wait)));
        BODIES.forEach(body -> template.sendBody(to, body));
        return CHECKS.receives(name, BODIES);
    }

    private static String tags(ProducerTemplate template) throws Exception {
        for (String tag : List.of("a", "b", "c")) {
            template.sendBody(producer("tags", Map.of("sendTag", tag)), tag);
        }
        return CHECKS.receives("tags", List.of("a", "c"));
    }

    private static String sql(ProducerTemplate template) throws Exception {
        String to = producer("sql", Map.of());
        template.sendBodyAndHeader(to, "other", RocketMQConstants.OVERRIDE_TAG, "a");
        template.sendBodyAndHeader(to, "by tag", RocketMQConstants.OVERRIDE_TAG, "b");
        template.sendBodyAndHeader(to, "by key", RocketMQConstants.OVERRIDE_MESSAGE_KEY, "k");
        return CHECKS.receives("sql", List.of("by tag", "by key"));
    }

    private static String request(ProducerTemplate template) {
        String to = producer("request", Map.of(
            "replyToTopic", Checks.topic("reply"), "replyToConsumerGroup", Checks.topic("reply"),
            "requestTimeoutMillis", "60000"));
        String answer = template.requestBody(to, "question", String.class);
        Checks.expect("question answered".equals(answer), "the answer is " + answer);
        return answer;
    }

    private Camel() {
    }
}
