package cli

import (
	"context"
	"time"

	"github.com/leveemq/levee/client"
)

// leaveTimeout bounds how long acknowledgements may take to be sent at the end.
const leaveTimeout = 5 * time.Second

// subscribe opens the subscription that the flags name.
func (c *consumeCmd) subscribe(ctx context.Context, a *app, conn *client.Client, config client.SubscriptionConfig) (source, error) {
	config.Type, config.Create, config.From = client.SubscriptionType(c.Type), c.Type != "", c.From.client()
	config.OnSkipped = func(partition int32, from, to int64) {
		a.note("partition %d: retention removed offsets %d to %d before they were settled; going on behind them", partition, from, to)
	}
	config.OnActive = func(partition int32, active bool) {
		if !active {
			a.note("partition %d: another consumer is active; waiting", partition)
		}
	}
	s, err := conn.Subscribe(ctx, c.Topic, c.Subscription, config)
	switch client.KindOf(err) {
	case "":
		return &consuming{subscription: s, ack: !c.NoAck}, nil
	case client.KindNotFound:
		return nil, withHint(err, "levee subscription create "+c.Topic+" "+c.Subscription+", or --type to make it now")
	case client.KindConflict:
		return nil, withHint(err, "levee subscription describe "+c.Topic+" "+c.Subscription)
	}
	return nil, onTopic(c.Topic, err)
}

// consuming is a consumer of a subscription, which acknowledges what is printed.
type consuming struct {
	subscription *client.Subscription
	ack          bool
	batch        []client.Delivery
}

func (c *consuming) next(ctx context.Context) (n int, err error) {
	c.batch, err = c.subscription.NextBatch(ctx)
	return len(c.batch), err
}

func (c *consuming) record(i int) *client.Message { return &c.batch[i].Message }

func (c *consuming) printed(n int) {
	if c.ack {
		client.AckBatch(c.batch[:n])
	}
}

func (c *consuming) tell(bool) {}

func (c *consuming) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	return c.subscription.Close(ctx)
}
