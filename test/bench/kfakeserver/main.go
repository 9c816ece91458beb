// Command kfakeserver is a broker with the Kafka protocol for tests (franz-go's kfake), as a peer on loopback. It owns its
// cluster and ends it on SIGTERM.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port := flag.Int("port", 19092, "")
	dir := flag.String("dir", "", "persist here (empty: memory)")
	sync := flag.Bool("sync", false, "fsync every produce")
	flag.Parse()
	o := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(*port), kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(1)}
	if *dir != "" {
		o = append(o, kfake.DataDir(*dir))
	}
	if *sync {
		o = append(o, kfake.SyncWrites())
	}
	c, err := kfake.NewCluster(o...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("listening", c.ListenAddrs())
	s := make(chan os.Signal, 1)
	signal.Notify(s, syscall.SIGTERM, syscall.SIGINT)
	<-s
	c.Close()
}
