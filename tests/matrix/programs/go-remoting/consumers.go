package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func consumerIn(space, group string) []consumer.Option {
	return []consumer.Option{
		consumer.WithNsResolver(resolver()), consumer.WithGroupName(group), consumer.WithInstance("push_" + group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithNamespace(space),
	}
}

func consume(topic string) {
	from := sender(topic)
	defer from.Shutdown()
	in := make(inbox, 100)
	taking := push(topic, everything, in.keep)
	defer taking.Shutdown()
	sent := map[string]*primitive.SendResult{}
	for _, body := range numbered(20) {
		each := message(topic, body).WithTag("tag").WithKeys([]string{"key", "other"})
		each.WithProperty("text", "Grüße, 你好")
		sent[body] = put(from, each)
	}
	seen := in.take(20, wait)
	same("bodies", numbered(20), bodies(seen))
	for _, each := range seen {
		result := sent[string(each.Body)]
		same("id", result.MsgID, each.MsgId)
		same("queue offset", result.QueueOffset, each.QueueOffset)
		same("queue", result.MessageQueue.QueueId, each.Queue.QueueId)
		same("tag", "tag", each.GetTags())
		same("keys", "key other", strings.TrimSpace(each.GetKeys()))
		same("text", "Grüße, 你好", each.GetProperty("text"))
		same("times", int32(0), each.ReconsumeTimes)
	}
	in.nothingElse(500 * time.Millisecond)
}

func tags(topic string) {
	filtered(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "red || blue"})
}

func sql(topic string) {
	expression := "size BETWEEN 1 AND 3 AND TAGS <> 'green'"
	filtered(topic, consumer.MessageSelector{Type: consumer.SQL92, Expression: expression})
}

func filtered(topic string, selector consumer.MessageSelector) {
	from := sender(topic)
	defer from.Shutdown()
	in := make(inbox, 100)
	taking := push(topic, selector, in.keep)
	defer taking.Shutdown()
	for i, tag := range []string{"red", "green", "blue", "green", "red", "green"} {
		size := i
		if i%4 == 0 {
			size = 1
		}
		each := message(topic, fmt.Sprint(tag, " ", i)).WithTag(tag)
		each.WithProperty("size", strconv.Itoa(size))
		put(from, each)
	}
	put(from, message(topic, "without a tag"))
	same("chosen", []string{"blue 2", "red 0", "red 4"}, bodies(in.take(3, wait)))
	in.nothingElse(500 * time.Millisecond)
}

func order(topic string) {
	from := sender(topic, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	defer from.Shutdown()
	for i := range 32 {
		key := strconv.Itoa(i % 4)
		put(from, message(topic, fmt.Sprint(key, ":", i/4)).WithShardingKey(key))
	}
	in := make(inbox, 100)
	var suspended atomic.Bool
	taking := push(topic, everything, func(ctx context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if string(all[0].Body) == "2:3" && suspended.CompareAndSwap(false, true) {
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		return in.keep(ctx, all...)
	}, consumer.WithConsumerOrder(true))
	defer taking.Shutdown()
	sequences := map[string][]string{}
	for _, each := range in.take(32, 90*time.Second) {
		key, number, _ := strings.Cut(string(each.Body), ":")
		sequences[key] = append(sequences[key], number)
	}
	for key, sequence := range sequences {
		same("order of "+key, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, sequence)
	}
	same("suspended", true, suspended.Load())
	in.nothingElse(500 * time.Millisecond)
}

func delay(topic string) {
	from := sender(topic)
	defer from.Shutdown()
	in := make(inbox, 100)
	taking := push(topic, everything, in.keep)
	defer taking.Shutdown()
	start := time.Now()
	put(from, message(topic, "after 5 s").WithDelayTimeLevel(2))
	seen := in.take(1, wait)[0]
	if after := time.Since(start); after < 4900*time.Millisecond || after > 20*time.Second {
		fail("delivered after %v, not 5 s", after)
	}
	same("level", "2", seen.GetProperty(primitive.PropertyDelayTimeLevel))
}

// again returns a handler that records each message and fails it until it has so many attempts.
func again(in inbox, times int32) handler {
	return func(ctx context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if concurrent, there := primitive.GetConcurrentlyCtx(ctx); there {
			concurrent.DelayLevelWhenNextConsume = 1
		}
		for _, each := range all {
			in <- each
		}
		if all[0].ReconsumeTimes < times {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}
}

func retry(topic string) {
	from := sender(topic)
	defer from.Shutdown()
	in := make(inbox, 100)
	taking := push(topic, everything, again(in, 2))
	defer taking.Shutdown()
	id := put(from, message(topic, "again")).MsgID
	for i, each := range in.take(3, wait) {
		same("times", int32(i), each.ReconsumeTimes)
		same("id", id, each.MsgId)
		same("topic", topic, each.Topic)
	}
	in.nothingElse(2 * time.Second)
}

func deadLetter(topic string) {
	from := sender(topic)
	defer from.Shutdown()
	in := make(inbox, 100)
	taking := push(topic, everything, again(in, 100), consumer.WithMaxReconsumeTimes(1))
	defer taking.Shutdown()
	put(from, message(topic, "never"))
	in.take(2, wait)
	dead := make(inbox, 100)
	untilThere("%DLQ%" + topic)
	reading := pushGroup("reader_"+topic, "%DLQ%"+topic, everything, dead.keep)
	defer reading.Shutdown()
	same("body", "never", string(dead.take(1, 90*time.Second)[0].Body))
	in.nothingElse(2 * time.Second)
}

func broadcast(topic string) {
	from := sender(topic)
	defer from.Shutdown()
	var inboxes []inbox
	for i := range 2 {
		in := make(inbox, 100)
		inboxes = append(inboxes, in)
		taking := push(topic, everything, in.keep,
			consumer.WithConsumerModel(consumer.BroadCasting), consumer.WithInstance(fmt.Sprint("broadcast", i)))
		defer taking.Shutdown()
	}
	for _, body := range numbered(8) {
		put(from, message(topic, body))
	}
	for _, in := range inboxes {
		same("bodies", numbered(8), bodies(in.take(8, wait)))
		in.nothingElse(500 * time.Millisecond)
	}
}

func pullConsumer(topic string) rocketmq.PullConsumer {
	made, err := rocketmq.NewPullConsumer(
		consumer.WithNsResolver(resolver()), consumer.WithGroupName(topic), consumer.WithInstance("pull_"+topic),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(made.Subscribe(topic, everything))
	must(made.Start())
	return made
}

func pull(topic string) {
	from := sender(topic, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	defer from.Shutdown()
	queue := queues(topic)[0]
	for _, body := range numbered(40) {
		each := message(topic, body)
		each.Queue = queue
		put(from, each)
	}
	reading := pullConsumer(topic)
	defer reading.Shutdown()
	last := func() bool {
		found, err := reading.PullFrom(context.Background(), queue, 39, 1)
		return err == nil && found.Status == primitive.PullFound
	}
	for end := time.Now().Add(20 * time.Second); !last() && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	found, err := reading.PullFrom(context.Background(), queue, 0, 64)
	must(err)
	same("status", primitive.PullFound, found.Status)
	same("most of a pull", 32, len(found.GetMessageExts()))
	same("next", int64(32), found.NextBeginOffset)
	beyond, err := reading.PullFrom(context.Background(), queue, 1_000, 8)
	must(err)
	same("beyond", primitive.PullOffsetIllegal, beyond.Status)
	same("beyond, next", int64(40), beyond.NextBeginOffset)
}

func litePull(topic string) {
	from := sender(topic)
	defer from.Shutdown()
	for _, body := range numbered(20) {
		put(from, message(topic, body))
	}
	reading := pullConsumer(topic)
	defer reading.Shutdown()
	var seen []*primitive.MessageExt
	for end := time.Now().Add(wait); len(seen) < 20 && time.Now().Before(end); {
		request, err := reading.Poll(context.Background(), 5*time.Second)
		if err != nil {
			continue
		}
		seen = append(seen, request.GetMsgList()...)
		reading.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	same("bodies", numbered(20), bodies(seen))
}

func requestReply(topic string) {
	asking, answering := sender(topic), sender("answer_"+topic)
	defer asking.Shutdown()
	defer answering.Shutdown()
	taking := push(topic, everything, func(_ context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range all {
			reply, err := consumer.CreateReplyMessage(each, nil)
			if err == nil {
				// The client forgets the body it is given.
				reply.Body = []byte("re: " + string(each.Body))
				_, err = answering.SendSync(context.Background(), reply)
			}
			if err != nil {
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	defer taking.Shutdown()
	// The answer comes over the connection of a producer whose heartbeat the broker has; the first may be too early.
	for end := time.Now().Add(90 * time.Second); ; {
		answer, err := asking.Request(context.Background(), 20*time.Second, message(topic, "question"))
		if err == nil {
			same("answer", "re: question", string(answer.Body))
			return
		}
		if time.Now().After(end) {
			must(err)
		}
	}
}
