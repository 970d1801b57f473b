// The checks of `make matrix` for the gRPC client for Go: one program for all its versions.
package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

const beside = 8

// checks by name; the files with build tags add those that only some versions have.
var checks = map[string]func(*room){
	"send":            send,
	"acknowledge":     acknowledge,
	"tags":            tags,
	"sql":             sqlFilter,
	"order":           order,
	"delay":           delay,
	"transaction":     transaction,
	"late_ack":        lateAck,
	"second_ack":      secondAck,
	"short_invisible": shortInvisible,
	"long_delay":      longDelay,
	"unknown_topic":   unknownTopic,
	"big_body":        bigBody,
	"wrong_type":      wrongType,
}

// seen is the text of a failing check.
type seen string

func expect(holds bool, format string, values ...any) {
	if !holds {
		panic(seen(fmt.Sprintf(format, values...)))
	}
}

func must(err error) {
	if err != nil {
		panic(seen(err.Error()))
	}
}

func main() {
	warmUp()
	slots := make(chan struct{}, beside)
	var all sync.WaitGroup
	for _, name := range strings.Fields(os.Getenv("MATRIX_CHECKS")) {
		all.Add(1)
		slots <- struct{}{}
		go func() {
			defer all.Done()
			report(name)
			<-slots
		}()
	}
	all.Wait()
}

// The first client of a server waits longest.
func warmUp() {
	for attempt := 0; attempt < 3; attempt++ {
		func() {
			defer func() {
				if failure := recover(); failure != nil {
					fmt.Fprintln(os.Stderr, failure)
				}
			}()
			newRoom("send").producer(nil)
			attempt = 3
		}()
	}
}

func report(name string) {
	verdict := "ok"
	func() {
		defer func() {
			if failure := recover(); failure != nil {
				verdict = "FAILED " + strings.Join(strings.Fields(fmt.Sprint(failure)), " ")
			}
		}()
		checks[name](newRoom(name))
	}()
	fmt.Printf("CHECK %s %s\n", name, verdict)
}
