package main

import (
	"context"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

var six = []string{"m0", "m1", "m2", "m3", "m4", "m5"}

func send(r *room) {
	producer := r.producer(nil)
	message := r.message("sync")
	message.SetTag("tag")
	message.SetKeys("k1", "k2")
	message.AddProperty("color", "azure")
	sent := map[string]string{put(producer, message).MessageID: "sync"}
	done := make(chan error, 1)
	producer.SendAsync(context.Background(), r.message("async"), func(_ context.Context, receipts []*rmq.SendReceipt, err error) {
		if err == nil {
			sent[receipts[0].MessageID] = "async"
		}
		done <- err
	})
	must(<-done)
	got := map[string]string{}
	for _, each := range receive(r.simple(rmq.SUB_ALL), 2, soon) {
		got[each.GetMessageId()] = string(each.GetBody())
		tag := ""
		if each.GetTag() != nil {
			tag = *each.GetTag()
		}
		saw := fmt.Sprintln(each.GetTopic(), tag, each.GetKeys(), each.GetProperties(), each.GetDeliveryAttempt())
		wanted := r.topic + "  [] map[] 1\n"
		if string(each.GetBody()) == "sync" {
			wanted = r.topic + " tag [k1 k2] map[color:azure] 1\n"
		}
		expect(saw == wanted, "%s", saw)
	}
	expect(reflect.DeepEqual(got, sent), "sent %v, received %v", sent, got)
}

func acknowledge(r *room) {
	consumer, producer := r.simple(rmq.SUB_ALL), r.producer(nil)
	put(producer, r.message("done"))
	put(producer, r.message("open"))
	got := peek(consumer, 2, soon)
	received := time.Now()
	expect(reflect.DeepEqual(sorted(bodies(got)), []string{"done", "open"}), "received %v", bodies(got))
	for _, message := range got {
		if string(message.GetBody()) == "done" {
			must(consumer.Ack(context.Background(), message))
		}
	}
	for attempt := int32(2); attempt < 4; attempt++ {
		again := peek(consumer, 1, 40*time.Second)
		after := time.Since(received)
		expect(len(again) == 1 && string(again[0].GetBody()) == "open", "came again: %v", bodies(again))
		expect(again[0].GetDeliveryAttempt() == attempt, "attempt %d", again[0].GetDeliveryAttempt())
		expect(after > 8*time.Second && after < 30*time.Second, "came again after %v", after)
		received = time.Now()
		if attempt == 2 {
			must(consumer.ChangeInvisibleDuration(again[0], 12*time.Second))
		} else {
			must(consumer.Ack(context.Background(), again[0]))
		}
	}
}

func tags(r *room) {
	consumer, producer := r.simple(rmq.NewFilterExpression("a || b")), r.producer(nil)
	for _, tag := range []string{"a", "b", "c"} {
		message := r.message(tag)
		message.SetTag(tag)
		put(producer, message)
	}
	put(producer, r.message("none"))
	filtered(consumer, "a", "b")
}

func sqlFilter(r *room) {
	expression := rmq.NewFilterExpressionWithType("size > 1 AND color IS NOT NULL", rmq.SQL92)
	consumer, producer := r.simple(expression), r.producer(nil)
	for _, size := range []string{"1", "2", "3"} {
		message := r.message("s" + size)
		message.AddProperty("size", size)
		message.AddProperty("color", "blue")
		put(producer, message)
	}
	put(producer, r.message("none"))
	filtered(consumer, "s2", "s3")
}

func filtered(consumer rmq.SimpleConsumer, expected ...string) {
	got := bodies(receive(consumer, len(expected), soon))
	expect(reflect.DeepEqual(sorted(got), expected), "received %v", got)
	nothingMore(consumer)
}

func sendSix(r *room) {
	producer := r.producer(nil)
	for _, body := range six {
		message := r.message(body)
		message.SetMessageGroup("group")
		put(producer, message)
	}
}

func order(r *room) {
	consumer := r.simple(rmq.SUB_ALL)
	sendSix(r)
	var got []string
	for round := 0; round < 10 && len(got) < len(six); round++ {
		got = append(got, bodies(receive(consumer, 2, time.Millisecond))...)
	}
	expect(reflect.DeepEqual(got, six), "received %v", got)
}

func delay(r *room) {
	consumer, producer := r.simple(rmq.SUB_ALL), r.producer(nil)
	due := time.Now().Add(6 * time.Second)
	message := r.message("later")
	message.SetDelayTimestamp(due)
	put(producer, message)
	got := receive(consumer, 1, 40*time.Second)
	late := time.Since(due)
	expect(len(got) == 1, "not received in 40 s")
	// The client sends whole seconds.
	expect(late > -1100*time.Millisecond && late < 6*time.Second, "received %v after it was due", late)
}

func transaction(r *room) {
	var lock sync.Mutex
	var asked []string
	producer := r.producer(func(message *rmq.MessageView) rmq.TransactionResolution {
		lock.Lock()
		defer lock.Unlock()
		asked = append(asked, string(message.GetBody()))
		return rmq.COMMIT
	})
	for _, end := range []string{"commit", "rollback", "unknown"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.Background(), r.message(end), transaction)
		must(err)
		switch end {
		case "commit":
			must(transaction.Commit())
		case "rollback":
			must(transaction.RollBack())
		}
	}
	consumer := r.simple(rmq.SUB_ALL)
	got := bodies(receive(consumer, 2, 90*time.Second))
	lock.Lock()
	defer lock.Unlock()
	expect(reflect.DeepEqual(sorted(got), []string{"commit", "unknown"}), "received %v, asked %v", got, asked)
	nothingMore(consumer)
}

func receivedOne(r *room) (rmq.SimpleConsumer, *rmq.MessageView) {
	consumer := r.simple(rmq.SUB_ALL)
	put(r.producer(nil), r.message("body"))
	got := peek(consumer, 1, soon)
	expect(len(got) == 1, "received %d", len(got))
	return consumer, got[0]
}

func lateAck(r *room) {
	consumer, message := receivedOne(r)
	time.Sleep(invisible + 2*time.Second)
	refused(40013, consumer.Ack(context.Background(), message))
}

func secondAck(r *room) {
	consumer, message := receivedOne(r)
	must(consumer.Ack(context.Background(), message))
	must(consumer.Ack(context.Background(), message))
}

func shortInvisible(r *room) {
	consumer := r.simple(rmq.SUB_ALL)
	put(r.producer(nil), r.message("body"))
	_, err := consumer.Receive(context.Background(), 1, time.Second)
	refused(40011, err)
}

func longDelay(r *room) {
	message := r.message("late")
	message.SetDelayTimestamp(time.Now().Add(48 * time.Hour))
	_, err := sendOne(r.producer(nil), message)
	refused(40012, err)
}

func unknownTopic(r *room) {
	producer, err := rmq.NewProducer(config(""))
	must(err)
	must(producer.Start())
	_, err = sendOne(producer, r.message("body"))
	refused(40402, err)
}

func bigBody(r *room) {
	producer := r.producer(nil)
	body := make([]byte, 3<<20)
	rand.New(rand.NewSource(1)).Read(body)
	put(producer, &rmq.Message{Topic: r.topic, Body: body})
	got := receive(r.simple(rmq.SUB_ALL), 1, soon)
	expect(len(got) == 1, "received %d", len(got))
	expect(string(got[0].GetBody()) == string(body), "another body")
	_, err := sendOne(producer, r.message(strings.Repeat("x", 4<<20+1)))
	refusedHere("message body size exceeds the threshold", err)
}

func wrongType(r *room) {
	message := r.message("body")
	message.SetMessageGroup("group")
	_, err := sendOne(r.producer(nil), message)
	refusedHere("message type not match with topic", err)
}
