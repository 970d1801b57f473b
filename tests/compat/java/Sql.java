import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * RocketMQ's own filter. A line of properties is {@code NAME=VALUE} joined by tabs; those lines end with an empty one, and
 * expressions follow, one a line. For each a line is written: {@code refused}, or a digit for each line of properties,
 * 1 where the expression holds as a broker sees it.
 */
final class Sql {
  private Sql() {}

  static void evaluate(String in, String out) throws Exception {
    List<String> lines = Files.readAllLines(Path.of(in), StandardCharsets.UTF_8);
    int end = lines.indexOf("");
    List<Map<String, String>> messages = new ArrayList<>();
    for (String line : lines.subList(0, end)) {
      Map<String, String> properties = new HashMap<>();
      for (String pair : line.split("\t")) {
        properties.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
      }
      messages.add(properties);
    }
    List<String> answers = new ArrayList<>();
    for (String text : lines.subList(end + 1, lines.size())) {
      answers.add(answer(text, messages));
    }
    Files.write(Path.of(out), answers);
  }

  private static String answer(String text, List<Map<String, String>> messages) {
    Expression expression;
    try {
      expression = SelectorParser.parse(text);
    } catch (MQFilterException refusal) {
      return "refused";
    }
    StringBuilder answer = new StringBuilder();
    for (Map<String, String> properties : messages) {
      boolean holds = false;
      try {
        holds = Boolean.TRUE.equals(expression.evaluate(new MessageEvaluationContext(properties)));
      } catch (Exception failure) {
        // A broker delivers no message it cannot decide on.
      }
      answer.append(holds ? '1' : '0');
    }
    return answer.toString();
  }
}
