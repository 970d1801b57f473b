//go:build !push

package main

import rmq "github.com/apache/rocketmq-clients/golang/v5"

// Names of the options in versions without a push consumer.
var (
	withAwaitDuration           = rmq.WithAwaitDuration
	withSubscriptionExpressions = rmq.WithSubscriptionExpressions
)
