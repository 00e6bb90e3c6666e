module pubsubserver

go 1.25

require cloud.google.com/go/pubsub/v2 v2.8.0
