package record

// Headers that Levee gives a meaning. Numbers are in decimal.
const (
	// HeaderDeliverAt is when a subscription of type shared or key_shared may hand the record out at earliest, in
	// milliseconds since the epoch. Who publishes sets it.
	HeaderDeliverAt = "levee-deliver-at"

	// Dead letters carry where they came from and why they were given up.
	HeaderSourceTopic     = "levee-source-topic"     // namespace/name
	HeaderSourceTopicID   = "levee-source-topic-id"  // in hexadecimal
	HeaderSourcePartition = "levee-source-partition" // number of the partition
	HeaderSourceOffset    = "levee-source-offset"    // offset there
	HeaderSubscription    = "levee-subscription"     // that gave it up
	HeaderReason          = "levee-reason"           // in words
	HeaderDeliveryCount   = "levee-delivery-count"   // how often it was handed out
	HeaderDeadLetteredAt  = "levee-dead-lettered-at" // milliseconds since the epoch

	// HeaderRedrivenFrom is the offset in the dead-letter topic that a record was published again from.
	HeaderRedrivenFrom = "levee-redriven-from"
)
