package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const largest = 4 << 20

func queues(topic string) []*primitive.MessageQueue {
	asking, err := admin.NewAdmin(admin.WithResolver(resolver()))
	must(err)
	defer asking.Close()
	found, err := asking.FetchPublishMessageQueues(context.Background(), topic)
	must(err)
	return found
}

// untilThere waits for a topic that its first message creates.
func untilThere(topic string) {
	asking, err := admin.NewAdmin(admin.WithResolver(resolver()))
	must(err)
	defer asking.Close()
	for end := time.Now().Add(wait); ; time.Sleep(200 * time.Millisecond) {
		found, err := asking.FetchPublishMessageQueues(context.Background(), topic)
		if err == nil && len(found) > 0 {
			return
		}
		if time.Now().After(end) {
			fail("no topic %s after %v: %v", topic, wait, err)
		}
	}
}

func send(topic string) {
	from := sender(topic)
	defer from.Shutdown()
	in := make(inbox, 100)
	result := put(from, message(topic, "synchronous"))
	if len(result.MsgID) < 32 || len(result.OffsetMsgID) != 32 {
		fail("ids: %s, %s", result.MsgID, result.OffsetMsgID)
	}
	done := make(chan error, 1)
	must(from.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) { done <- err },
		message(topic, "asynchronous")))
	select {
	case err := <-done:
		must(err)
	case <-time.After(20 * time.Second):
		fail("no call back after 20 s")
	}
	must(from.SendOneWay(context.Background(), message(topic, "one way")))
	taking := push(topic, everything, in.keep)
	defer taking.Shutdown()
	same("bodies", []string{"asynchronous", "one way", "synchronous"}, bodies(in.take(3, wait)))
}

func batch(topic string) {
	from := sender(topic)
	defer from.Shutdown()
	var messages []*primitive.Message
	for _, body := range numbered(10) {
		each := message(topic, body)
		each.WithProperty("text", body)
		messages = append(messages, each)
	}
	put(from, messages...)
	in := make(inbox, 100)
	taking := push(topic, everything, in.keep)
	defer taking.Shutdown()
	seen := in.take(10, wait)
	same("bodies", numbered(10), bodies(seen))
	for _, each := range seen {
		same("property", string(each.Body), each.GetProperty("text"))
	}
}

func compressed(topic string) {
	seen := there(topic, bytes.Repeat([]byte("ferromq "), 5_000))
	if seen.StoreSize > 10_000 {
		fail("stored in %d bytes", seen.StoreSize)
	}
}

func bigBody(topic string) {
	body := make([]byte, largest-(64<<10))
	rand.New(rand.NewSource(1)).Read(body)
	there(topic, body, producer.WithCompressMsgBodyOverHowmuch(2*largest))
	from := sender(topic+"_above", producer.WithCompressMsgBodyOverHowmuch(2*largest))
	defer from.Shutdown()
	_, err := from.SendSync(context.Background(), primitive.NewMessage(topic, make([]byte, largest+1)))
	if err == nil {
		fail("a body of %d bytes is taken", largest+1)
	}
}

// there sends the body and returns the message as a consumer gets it.
func there(topic string, body []byte, options ...producer.Option) *primitive.MessageExt {
	from := sender(topic, options...)
	defer from.Shutdown()
	put(from, primitive.NewMessage(topic, body))
	in := make(inbox, 100)
	taking := push(topic, everything, in.keep)
	defer taking.Shutdown()
	seen := in.take(1, wait)[0]
	if !bytes.Equal(body, seen.Body) {
		fail("another body of %d bytes", len(seen.Body))
	}
	return seen
}

type decisions struct{}

func (decisions) ExecuteLocalTransaction(sent *primitive.Message) primitive.LocalTransactionState {
	switch string(sent.Body) {
	case "committed":
		return primitive.CommitMessageState
	case "rolled back":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (decisions) CheckLocalTransaction(asked *primitive.MessageExt) primitive.LocalTransactionState {
	if string(asked.Body) == "asked" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transaction(topic string) {
	from, err := rocketmq.NewTransactionProducer(decisions{},
		producer.WithNsResolver(resolver()), producer.WithGroupName("producer_"+topic),
		producer.WithInstanceName("producer_"+topic))
	must(err)
	must(from.Start())
	defer from.Shutdown()
	in := make(inbox, 100)
	taking := push(topic, everything, in.keep)
	defer taking.Shutdown()
	for _, body := range []string{"rolled back", "asked", "committed"} {
		_, err := from.SendMessageInTransaction(context.Background(), message(topic, body))
		must(err)
	}
	seen := []string{string(in.take(1, wait)[0].Body), string(in.take(1, 90*time.Second)[0].Body)}
	same("bodies", []string{"committed", "asked"}, seen)
	// The broker may have asked once more before the answer came: then the message is there twice.
	time.Sleep(2 * time.Second)
	for len(in) > 0 {
		same("more", "asked", string((<-in).Body))
	}
}

func trace(topic string) {
	// The client does not make RMQ_SYS_TRACE_TOPIC: this topic is there before.
	traces := "traces_" + run
	from := sender(topic, producer.WithTrace(&primitive.TraceConfig{
		TraceTopic: traces, Access: primitive.Local, Resolver: resolver(),
	}))
	defer from.Shutdown()
	id := put(from, message(topic, "traced")).MsgID
	in := make(inbox, 100)
	taking := pushGroup(topic, traces, everything, in.keep)
	defer taking.Shutdown()
	for {
		if each := in.take(1, wait)[0]; strings.Contains(string(each.Body), id) {
			return
		}
	}
}

func inNamespace(topic string) {
	space := "space" + run
	from := sender(topic, producer.WithNamespace(space))
	defer from.Shutdown()
	in := make(inbox, 100)
	put(from, message(topic, "in a namespace"))
	taking, err := rocketmq.NewPushConsumer(consumerIn(space, topic)...)
	must(err)
	must(taking.Subscribe(topic, everything, in.keep))
	must(taking.Start())
	defer taking.Shutdown()
	seen := in.take(1, wait)[0]
	same("body", "in a namespace", string(seen.Body))
	if len(queues(fmt.Sprintf("%s%%%s", space, topic))) == 0 {
		fail("no topic %s%%%s", space, topic)
	}
}
