//go:build push

package main

import (
	"fmt"
	"reflect"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

var (
	withAwaitDuration           = rmq.WithSimpleAwaitDuration
	withSubscriptionExpressions = rmq.WithSimpleSubscriptionExpressions
)

func init() {
	checks["consume"] = consume
	checks["order_push"] = orderPush
	checks["retry"] = retry
	checks["dead_letter"] = deadLetter
}

// given holds the deliveries of a push consumer: bodies with their attempts.
type given struct {
	lock sync.Mutex
	all  []string
}

func (g *given) list() []string {
	g.lock.Lock()
	defer g.lock.Unlock()
	return append([]string{}, g.all...)
}

func (g *given) await(limit time.Duration, fits func([]string) bool) {
	end := time.Now().Add(limit)
	for !fits(g.list()) && time.Now().Before(end) {
		time.Sleep(100 * time.Millisecond)
	}
	expect(fits(g.list()), "given after %v: %v", limit, g.list())
}

func (r *room) push(fails func(*rmq.MessageView) bool) *given {
	taken := &given{}
	consumer, err := rmq.NewPushConsumer(
		config(r.topic),
		rmq.WithPushAwaitDuration(wait),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{r.topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
				taken.lock.Lock()
				defer taken.lock.Unlock()
				taken.all = append(taken.all, fmt.Sprintf("%s/%d", message.GetBody(), message.GetDeliveryAttempt()))
				if fails(message) {
					return rmq.FAILURE
				}
				return rmq.SUCCESS
			},
		}),
	)
	must(err)
	must(consumer.Start())
	return taken
}

func succeeds(*rmq.MessageView) bool { return false }

func consume(r *room) {
	taken, producer := r.push(succeeds), r.producer(nil)
	var sent []string
	for number := 0; number < 10; number++ {
		put(producer, r.message(fmt.Sprintf("m%d", number)))
		sent = append(sent, fmt.Sprintf("m%d/1", number))
	}
	taken.await(60*time.Second, func(all []string) bool { return len(all) >= len(sent) })
	time.Sleep(3 * time.Second)
	expect(reflect.DeepEqual(sorted(taken.list()), sent), "given %v", taken.list())
}

func orderPush(r *room) {
	taken := r.push(succeeds)
	sendSix(r)
	var wanted []string
	for _, body := range six {
		wanted = append(wanted, body+"/1")
	}
	taken.await(40*time.Second, func(all []string) bool { return reflect.DeepEqual(all, wanted) })
}

func retry(r *room) {
	taken := r.push(func(message *rmq.MessageView) bool {
		return string(message.GetBody()) == "bad" && message.GetDeliveryAttempt() == 1
	})
	producer := r.producer(nil)
	put(producer, r.message("bad"))
	put(producer, r.message("good"))
	taken.await(90*time.Second, func(all []string) bool { return len(all) >= 3 })
	time.Sleep(4 * time.Second)
	expect(reflect.DeepEqual(sorted(taken.list()), []string{"bad/1", "bad/2", "good/1"}), "given %v", taken.list())
}

func deadLetter(r *room) {
	taken := r.push(func(*rmq.MessageView) bool { return true })
	id := put(r.producer(nil), r.message("bad")).MessageID
	taken.await(60*time.Second, func(all []string) bool { return len(all) >= 2 })
	dead := receive(undertaker(r), 1, 40*time.Second)
	expect(len(dead) == 1 && string(dead[0].GetBody()) == "bad", "dead letters %v", bodies(dead))
	expect(dead[0].GetMessageId() == id, "another message id")
	expect(len(taken.list()) == 2, "given %v", taken.list())
}

// undertaker consumes the dead letters once there are some: RocketMQ's proxy caches a missing topic for 20 s.
func undertaker(r *room) (consumer rmq.SimpleConsumer) {
	for attempt := 0; consumer == nil; attempt++ {
		time.Sleep(12 * time.Second)
		func() {
			defer func() {
				if failure := recover(); failure != nil {
					expect(attempt < 3, "no dead letters: %v", failure)
				}
			}()
			consumer = simple("undertaker_"+r.topic, "%DLQ%"+r.topic, rmq.SUB_ALL)
		}()
	}
	return consumer
}
