import java.io.PrintStream;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.NamespaceUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's own remoting clients, driven line by line: a command with its arguments joined by tabs comes on standard
 * input, one line goes back: {@code ok} with the answer, or {@code error} with the reason.
 *
 * <pre>
 * producer NAME NAMESRV GROUP [COMPRESSION]
 *                                          a DefaultMQProducer; see {@link Sender} for what it is told
 * traced NAME NAMESRV GROUP                one that traces what it sends
 * traced-transactions NAME NAMESRV GROUP   one of transactions that traces them
 * transactions NAME NAMESRV GROUP          a TransactionMQProducer
 * push NAME NAMESRV GROUP TOPIC MODE FAIL [KIND EXPRESSION]
 *                                          a DefaultMQPushConsumer: concurrent, orderly, broadcast or pop, that chooses by
 *                                          tag or sql; see {@link Taker}
 * lite NAME NAMESRV GROUP TOPIC            a DefaultLitePullConsumer
 * replier NAME NAMESRV GROUP TOPIC         a consumer that answers each message
 * admin FILE ARGUMENT…                     mqadmin itself; what it prints goes to FILE, failures with their traces
 * signed FILE ACCESS SECRET ARGUMENT…     the same, with credentials
 * wrap NAME NAMESPACE                      NAME in NAMESPACE, and that without it, as NamespaceUtil has them, comma-joined
 * time KEY                                 when a message of this unique key was sent, milliseconds since 1970
 * close NAME
 * </pre>
 *
 * A GROUP of the form {@code NAMESPACE:GROUP} gives the client a namespace.
 */
public final class Clients {
  public static void main(String[] args) throws Exception {
    Map<String, Driven> clients = new HashMap<>();
    Commands.serve((command, name, words) -> run(clients, command, name, words));
  }

  private static String run(Map<String, Driven> clients, String command, String name, String[] args) throws Exception {
    switch (command) {
      case "producer":
      case "traced":
      case "transactions":
      case "traced-transactions":
        clients.put(name, Sender.start(command, name, args));
        return "";
      case "push":
      case "lite":
      case "replier":
        clients.put(name, Taker.start(command, name, args));
        return "";
      case "admin":
        admin(name, args, null);
        return "";
      case "signed":
        RPCHook hook = new AclClientRPCHook(new SessionCredentials(args[0], args[1]));
        admin(name, Arrays.copyOfRange(args, 2, args.length), hook);
        return "";
      case "wrap":
        String whole = NamespaceUtil.wrapNamespace(args[0], name);
        return whole + "," + NamespaceUtil.withoutNamespace(whole, args[0]);
      case "time":
        return String.valueOf(MessageClientIDSetter.getNearlyTimeFromID(name).getTime());
      case "close":
        clients.remove(name).close();
        return "";
      default:
        return clients.get(name).answer(command, args);
    }
  }

  private static void admin(String file, String[] args, RPCHook hook) throws Exception {
    PrintStream out = System.out;
    PrintStream err = System.err;
    try (PrintStream captured = new PrintStream(file, "UTF-8")) {
      System.setOut(captured);
      System.setErr(captured);
      MQAdminStartup.main0(args, hook);
    } finally {
      System.setOut(out);
      System.setErr(err);
    }
  }

  /** Gives a client the namespace of its group's word, if there is one, and returns the group. */
  static String group(ClientConfig client, String word) {
    String[] parts = word.split(":", 2);
    if (parts.length == 1) {
      return word;
    }
    client.setNamespace(parts[0]);
    return parts[1];
  }

  /** A client that answers commands. */
  interface Driven extends AutoCloseable {
    String answer(String command, String[] args) throws Exception;
  }
}
