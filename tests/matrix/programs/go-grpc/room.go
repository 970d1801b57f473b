package main

import (
	"context"
	"os"
	"sort"
	"strings"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	invisible = 10 * time.Second
	wait      = 5 * time.Second
	soon      = 30 * time.Second
	noMessage = 40401
)

// room is a check's topic and its group, which have one name.
type room struct{ topic string }

func newRoom(name string) *room { return &room{name + "_" + os.Getenv("MATRIX_RUN")} }

func config(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint:      os.Getenv("MATRIX_ENDPOINT"),
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey:    os.Getenv("MATRIX_ACCESS_KEY"),
			AccessSecret: os.Getenv("MATRIX_SECRET_KEY"),
		},
	}
}

func (r *room) producer(check func(*rmq.MessageView) rmq.TransactionResolution) rmq.Producer {
	options := []rmq.ProducerOption{rmq.WithTopics(r.topic)}
	if check != nil {
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
	}
	producer, err := rmq.NewProducer(config(""), options...)
	must(err)
	must(producer.Start())
	return producer
}

func (r *room) simple(expression *rmq.FilterExpression) rmq.SimpleConsumer {
	return simple(r.topic, r.topic, expression)
}

func simple(group, topic string, expression *rmq.FilterExpression) rmq.SimpleConsumer {
	consumer, err := rmq.NewSimpleConsumer(
		config(group),
		withAwaitDuration(wait),
		withSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: expression}),
	)
	must(err)
	must(consumer.Start())
	// A receive that comes before the client's settings is refused by the original.
	time.Sleep(time.Second)
	return consumer
}

func (r *room) message(body string) *rmq.Message {
	return &rmq.Message{Topic: r.topic, Body: []byte(body)}
}

func sendOne(producer rmq.Producer, message *rmq.Message) (*rmq.SendReceipt, error) {
	receipts, err := producer.Send(context.Background(), message)
	if err != nil {
		return nil, err
	}
	expect(len(receipts) == 1, "%d receipts", len(receipts))
	return receipts[0], nil
}

func put(producer rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	receipt, err := sendOne(producer, message)
	must(err)
	return receipt
}

// once receives once; an empty receive is no failure.
func once(consumer rmq.SimpleConsumer, count int) []*rmq.MessageView {
	got, err := consumer.Receive(context.Background(), int32(count), invisible)
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == noMessage {
		return nil
	}
	must(err)
	return got
}

// peek receives until it has so many, for so long at most.
func peek(consumer rmq.SimpleConsumer, count int, limit time.Duration) []*rmq.MessageView {
	return receiveAnd(func(*rmq.MessageView) {}, consumer, count, limit)
}

// receive receives as peek, and acknowledges each at once.
func receive(consumer rmq.SimpleConsumer, count int, limit time.Duration) []*rmq.MessageView {
	ack := func(message *rmq.MessageView) { must(consumer.Ack(context.Background(), message)) }
	return receiveAnd(ack, consumer, count, limit)
}

func receiveAnd(
	do func(*rmq.MessageView), consumer rmq.SimpleConsumer, count int, limit time.Duration,
) []*rmq.MessageView {
	var got []*rmq.MessageView
	for end := time.Now().Add(limit); len(got) < count && time.Now().Before(end); {
		for _, message := range once(consumer, count-len(got)) {
			do(message)
			got = append(got, message)
		}
	}
	return got
}

func nothingMore(consumer rmq.SimpleConsumer) {
	more := bodies(once(consumer, 16))
	expect(len(more) == 0, "received also %v", more)
}

func bodies(messages []*rmq.MessageView) []string {
	var texts []string
	for _, message := range messages {
		texts = append(texts, string(message.GetBody()))
	}
	return texts
}

func sorted(texts []string) []string {
	texts = append([]string{}, texts...)
	sort.Strings(texts)
	return texts
}

// refused checks that a call is refused with a code.
func refused(code int32, err error) {
	expect(err != nil, "accepted")
	status, ok := rmq.AsErrRpcStatus(err)
	expect(ok && status.GetCode() == code, "%v", err)
}

// refusedHere checks that the client itself refuses a call, with this text.
func refusedHere(words string, err error) {
	expect(err != nil, "accepted")
	expect(strings.Contains(err.Error(), words), "%v", err)
}
