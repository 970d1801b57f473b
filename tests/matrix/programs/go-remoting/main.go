// Runs RocketMQ's remoting client for Go and prints one line for each check.
//
// Arguments: the checks to run; without arguments all of them.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	limit = 165 * time.Second
	// beside is how many checks run at the same time.
	beside = 6
)

var (
	namesrv = os.Getenv("MATRIX_NAMESRV")
	run     = os.Getenv("MATRIX_RUN")
)

type check struct {
	name string
	run  func(topic string)
}

var checks = []check{
	{"send", send}, {"batch", batch}, {"compressed", compressed}, {"big_body", bigBody},
	{"consume", consume}, {"tags", tags}, {"sql", sql}, {"order", order}, {"delay", delay},
	{"transaction", transaction}, {"retry", retry}, {"dead_letter", deadLetter}, {"broadcast", broadcast},
	{"pull", pull}, {"lite_pull", litePull}, {"request_reply", requestReply}, {"namespace", inNamespace}, {"trace", trace},
}

// failed is the panic value of a failing check.
type failed string

func fail(format string, values ...any) {
	panic(failed(fmt.Sprintf(format, values...)))
}

// must fails the check if there is an error.
func must(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func same[T any](what string, expected, seen T) {
	if fmt.Sprint(expected) != fmt.Sprint(seen) {
		fail("%s: %v, not %v", what, seen, expected)
	}
}

func verdict(run func(string), topic string) (line string) {
	defer func() {
		if reason := recover(); reason != nil {
			line = "FAILED " + strings.ReplaceAll(fmt.Sprint(reason), "\n", " ")
		}
	}()
	run(topic)
	return "ok"
}

func main() {
	rlog.SetLogLevel("error")
	var lock sync.Mutex
	var open []string
	var all sync.WaitGroup
	places := make(chan struct{}, beside)
	for _, each := range checks {
		if len(os.Args) > 1 && !slices.Contains(os.Args[1:], each.name) {
			continue
		}
		lock.Lock()
		open = append(open, each.name)
		lock.Unlock()
		all.Add(1)
		go func() {
			defer all.Done()
			places <- struct{}{}
			defer func() { <-places }()
			line := verdict(each.run, each.name+"_"+run)
			lock.Lock()
			defer lock.Unlock()
			fmt.Printf("CHECK %s %s\n", each.name, line)
			open = slices.DeleteFunc(open, func(name string) bool { return name == each.name })
		}()
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
	}
	lock.Lock()
	for _, name := range open {
		fmt.Printf("CHECK %s FAILED not done after %v\n", name, limit)
	}
}
