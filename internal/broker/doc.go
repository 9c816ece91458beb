// Package broker owns what listeners call: topics and their incarnations, publishing, subscribing, retention, deletion
// and the drain at the end. It routes each call to the partition that serves it and turns what comes back into errors
// that name the topic and say what to do. It never speaks a wire format, never opens a file of a log itself, and keeps
// nothing across restarts but what the metadata and the logs hold.
//
// Invariant: a handle (publisher, subscriber) belongs to one incarnation of a topic. Once the metadata has that
// incarnation deleted, the handle only ever answers kind deleted, and nothing it does reaches the next incarnation.
//
// How things end: the broker's life is the parent of every topic's, and a topic's of each of its subscribers'. Ending one
// ends all below it, with a cause that is the error they answer from then on.
//
// size: what listeners call is one surface; what can stand alone (dispatch, subscriptions, partitions) does already
package broker
