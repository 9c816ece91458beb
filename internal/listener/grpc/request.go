package grpc

import (
	"github.com/leveemq/levee/api/codec"
	"github.com/leveemq/levee/internal/fault"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// requestCodec is the server's codec. What is wrong with a request it puts into the request instead of returning it:
// gRPC answers an error of receiving by itself, at once, without a kind, and cuts off what the call still had to say.
//
// For the same reason gRPC's own limit is twice ours. Only a message above that gets gRPC's bare RESOURCE_EXHAUSTED,
// which names the limit in words; reading a message of any size to refuse it better would be what limits are against.
type requestCodec struct {
	codec.Codec
	most int // bytes of a message
}

var _ encoding.CodecV2 = requestCodec{}

// request receives one message.
type request struct {
	into any
	err  error
}

// Unmarshal decodes data into v, or into what v, a *request, receives into.
func (c requestCodec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*request)
	if !ok {
		return c.Codec.Unmarshal(data, v)
	}
	if n := data.Len(); n > c.most {
		r.err = fault.New(fault.TooLarge, "a message of %d bytes is above the limit of %d: send fewer batches or records at once, or smaller ones",
			n, c.most).With("limit", c.most)
	} else if err := c.decode(data, r.into); err != nil {
		r.err = fault.New(fault.InvalidArgument, "a message is not what the API's definition says: %w", err)
	}
	return nil
}

// Marshal encodes v, which may be a *delivery or an *outgoing.
func (c requestCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *delivery:
		if m.pooled {
			return c.MarshalPooled(&m.SubscribeResponse)
		}
		return c.Codec.Marshal(&m.SubscribeResponse)
	case *outgoing:
		if m.pooled {
			return c.MarshalPooled(&m.ConsumeResponse)
		}
		return c.Codec.Marshal(&m.ConsumeResponse)
	}
	return c.Codec.Marshal(v)
}

func (c requestCodec) decode(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *message:
		return m.decode(data)
	case *consumeMessage:
		return m.decode(data)
	}
	return c.Codec.Unmarshal(data, v)
}

// receive fills v by calling recv.
func (r *request) receive(recv func(any) error, v any) error {
	r.into, r.err = v, nil
	if err := recv(r); err != nil {
		return err
	}
	return r.err
}

// receiver is a stream that receives through a request. One goroutine at a time receives, as gRPC demands.
type receiver struct {
	rpc.ServerStream
	request request
}

// RecvMsg receives the next message into v.
func (r *receiver) RecvMsg(v any) error { return r.request.receive(r.ServerStream.RecvMsg, v) }
