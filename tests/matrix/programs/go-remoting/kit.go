package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const wait = 60 * time.Second

var everything = consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}

func resolver() primitive.NsResolver { return primitive.NewPassthroughResolver([]string{namesrv}) }

// sender is a started producer of its own instance.
func sender(topic string, options ...producer.Option) rocketmq.Producer {
	made, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNsResolver(resolver()), producer.WithGroupName("producer_" + topic),
		producer.WithInstanceName("producer_" + topic), producer.WithSendMsgTimeout(20 * time.Second),
	}, options...)...)
	must(err)
	must(made.Start())
	return made
}

func put(from rocketmq.Producer, messages ...*primitive.Message) *primitive.SendResult {
	result, err := from.SendSync(context.Background(), messages...)
	must(err)
	same("status", primitive.SendOK, result.Status)
	return result
}

func message(topic, body string) *primitive.Message { return primitive.NewMessage(topic, []byte(body)) }

type inbox chan *primitive.MessageExt

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (in inbox) keep(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	for _, each := range messages {
		in <- each
	}
	return consumer.ConsumeSuccess, nil
}

// take returns the next so many messages.
func (in inbox) take(count int, within time.Duration) []*primitive.MessageExt {
	var taken []*primitive.MessageExt
	end := time.After(within)
	for len(taken) < count {
		select {
		case next := <-in:
			taken = append(taken, next)
		case <-end:
			fail("%d of %d messages after %v: %v", len(taken), count, within, bodies(taken))
		}
	}
	return taken
}

func (in inbox) nothingElse(within time.Duration) {
	select {
	case extra := <-in:
		fail("one message too many: %s", extra.Body)
	case <-time.After(within):
	}
}

func bodies(messages []*primitive.MessageExt) []string {
	var all []string
	for _, each := range messages {
		all = append(all, string(each.Body))
	}
	slices.Sort(all)
	return all
}

// numbered returns the bodies "body 10", "body 11", …
func numbered(count int) []string {
	var all []string
	for i := 10; i < 10+count; i++ {
		all = append(all, fmt.Sprintf("body %d", i))
	}
	return all
}

// push starts a push consumer of the group that has the topic's name.
func push(topic string, selector consumer.MessageSelector, handle handler, options ...consumer.Option) rocketmq.PushConsumer {
	return pushGroup(topic, topic, selector, handle, options...)
}

func pushGroup(
	group, topic string, selector consumer.MessageSelector, handle handler, options ...consumer.Option,
) rocketmq.PushConsumer {
	made, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNsResolver(resolver()), consumer.WithGroupName(group), consumer.WithInstance("push_" + group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumeMessageBatchMaxSize(1),
	}, options...)...)
	must(err)
	must(made.Subscribe(topic, selector, handle))
	must(made.Start())
	return made
}
