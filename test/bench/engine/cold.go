package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/s3"
	"github.com/leveemq/levee/internal/tier"
)

// readBytes is what a broker's subscription asks for at once.
const readBytes = 1 << 20

// openBucket takes its keys from where a broker takes them.
func openBucket(endpoint, bucket string) (objstore.Store, error) {
	return s3.Open(s3.Config{
		Endpoint: endpoint, Bucket: bucket, PathStyle: true, Region: cmp.Or(os.Getenv("LEVEE_OBJECT_STORE_REGION"), "us-east-1"),
		AccessKey: os.Getenv("LEVEE_OBJECT_STORE_ACCESS_KEY"), SecretKey: os.Getenv("LEVEE_OBJECT_STORE_SECRET_KEY"),
	})
}

// measureCold reads every partition that a store has once, from its beginning, by the broker's reader of objects, whose
// cache is empty. Batches are checked and put together as for a consumer, and thrown away.
func measureCold(ctx context.Context, store objstore.Store, label string) (row, error) {
	first, err := firstSegment(ctx, store)
	if err != nil {
		return row{}, err
	}
	all, _, err := tier.Rebuild(ctx, store, first.Prefix, first.Cluster)
	if err != nil {
		return row{}, err
	}
	cold, err := tier.NewCold(ctx, store, tier.ColdConfig{})
	if err != nil {
		return row{}, err
	}
	var records, size int64
	cpu, start := cpuSeconds(), time.Now()
	for _, p := range all {
		if len(p.Objects) == 0 {
			continue
		}
		place := tier.Place{Prefix: first.Prefix, Cluster: first.Cluster, TopicID: p.TopicID, Partition: p.Number}
		n, b, err := readAll(ctx, cold, place, p.Objects)
		if err != nil {
			return row{}, errors.Join(err, cold.Close())
		}
		records, size = records+n, size+b
	}
	took := time.Since(start).Seconds()
	cpu = cpuSeconds() - cpu
	return row{
		Label: label, Mode: "consume", Style: "reader", Size: int(size / max(records, 1)), Conc: 1, Partitions: len(all), Msgs: records, Secs: took,
		MsgsPerS: float64(records) / took, MBPerS: float64(size) / 1e6 / took, SrvCPUPerM: cpu / float64(max(records, 1)) * 1e6,
	}, cold.Close()
}

// firstSegment tells whose objects the store has.
func firstSegment(ctx context.Context, store objstore.Store) (tier.Place, error) {
	for info, err := range store.List(ctx, "", "") {
		if err != nil {
			return tier.Place{}, err
		}
		if p, _, ok := tier.ParseKey(info.Key); ok && strings.HasSuffix(info.Key, tier.Suffix) {
			return p, nil
		}
	}
	return tier.Place{}, errors.New("the bucket has no segments")
}

func readAll(ctx context.Context, cold *tier.Cold, place tier.Place, objects []tier.Object) (records, size int64, err error) {
	end := objects[len(objects)-1].Next
	buf := make([]byte, 2*readBytes)
	memory := func(n int) []byte {
		if n > len(buf) {
			buf = make([]byte, n)
		}
		return buf[:n]
	}
	at := 0
	find := func(offset int64) (tier.Object, bool) { // asked in order, by and large
		for at > 0 && objects[at].Base > offset {
			at--
		}
		for at < len(objects)-1 && objects[at].Next <= offset {
			at++
		}
		o := objects[at]
		return o, o.Base <= offset && offset < o.Next
	}
	r := cold.NewReader(place, find, objects[0].Base)
	for r.Offset() < end {
		was := r.Offset()
		c, err := r.Next(ctx, readBytes, 1<<20, memory)
		if err != nil {
			return records, size, err
		}
		if c.Next == was {
			return records, size, fmt.Errorf("%d is in no object", was)
		}
		records, size = records+int64(c.Records), size+int64(len(c.Data))
	}
	return records, size, nil
}
