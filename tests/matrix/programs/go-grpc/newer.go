//go:build newer

package main

import (
	"context"
	"reflect"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

func init() {
	checks["recall"] = recall
	checks["priority"] = priority
}

func recall(r *room) {
	consumer, producer := r.simple(rmq.SUB_ALL), r.producer(nil)
	due := time.Now().Add(8 * time.Second)
	var receipts []*rmq.SendReceipt
	for _, body := range []string{"recalled", "stays"} {
		message := r.message(body)
		message.SetDelayTimestamp(due)
		receipts = append(receipts, put(producer, message))
	}
	id, err := producer.Recall(context.Background(), r.topic, receipts[0].RecallHandle)
	must(err)
	expect(id == receipts[0].MessageID, "recalled %s", id)
	got := bodies(receive(consumer, 1, 40*time.Second))
	expect(reflect.DeepEqual(got, []string{"stays"}), "received %v", got)
	nothingMore(consumer)
}

func priority(r *room) {
	producer := r.producer(nil)
	for number, body := range []string{"p0", "p1", "p2"} {
		message := r.message(body)
		must(message.SetPriority(int32(number)))
		put(producer, message)
	}
	consumer := r.simple(rmq.SUB_ALL)
	var got []string
	for number := 0; number < 3; number++ {
		got = append(got, bodies(receive(consumer, 1, soon))...)
	}
	expect(reflect.DeepEqual(got, []string{"p2", "p1", "p0"}), "received %v", got)
}
