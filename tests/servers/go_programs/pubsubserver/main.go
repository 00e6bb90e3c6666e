// An in-memory Pub/Sub that speaks the real protocol: the server that Google's Go client is tested with.
//
//	pubsubserver PORT STATUS_PORT
//
// GET http://127.0.0.1:STATUS_PORT/?topic=TOPIC tells how many of its messages were published, delivered (how often in
// all) and acknowledged.
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strconv"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := pstest.NewServerWithPort(port)
	defer server.Close()
	http.HandleFunc("/", func(w http.ResponseWriter, request *http.Request) {
		topic := request.URL.Query().Get("topic")
		counts := map[string]int{"published": 0, "delivered": 0, "acknowledged": 0}
		for _, message := range server.Messages() {
			if message.Topic != topic {
				continue
			}
			counts["published"]++
			counts["delivered"] += message.Deliveries
			if message.Acks > 0 {
				counts["acknowledged"]++
			}
		}
		if err := json.NewEncoder(w).Encode(counts); err != nil {
			log.Print(err)
		}
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[2], nil))
}
