module capelin/aws

go 1.21

require sigs.k8s.io/cluster-api-provider-aws/v2 v2.13.0
