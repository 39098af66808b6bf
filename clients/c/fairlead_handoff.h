/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For proxies in C: hand pairs of connections off to Fairlead, and take them back. docs/handoff.md
 * describes the messages; clients/rust is the same for Rust. POSIX and Linux only; nothing to link.
 *
 *	int link = fairlead_connect("/run/fairlead/edge.adopt");
 *	uint32_t number;
 *	int outcome = fairlead_adopt(link, client, server, &number, on_event, context);
 *
 * 0: both connections are forwarded now, also when this process ends; close the descriptors.
 * Above 0: refused for this reason; the descriptors are as before. Below 0: -errno.
 */
#ifndef FAIRLEAD_HANDOFF_H
#define FAIRLEAD_HANDOFF_H

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FAIRLEAD_MESSAGE_BYTES 16

enum fairlead_op {
	FAIRLEAD_HANDOFF = 1,
	FAIRLEAD_RESTORE = 2,
	FAIRLEAD_CONTROL = 5,
	FAIRLEAD_OS_CONTROL = 10, /* a direction has ended */
	FAIRLEAD_OS_RESOURCE = 11, /* arg: room for connections; hand off as many, if you like */
	FAIRLEAD_OS_RESTORE = 12, /* take the connection back */
};

enum fairlead_refusal {
	FAIRLEAD_BUSY = 4,
	FAIRLEAD_TABLE_FULL = 5,
	FAIRLEAD_BUDGET = 6,
	FAIRLEAD_QUEUE_NOT_EMPTY = 9,
	FAIRLEAD_UNSTABLE = 23,
};

#define FAIRLEAD_PAIR 1	       /* flags of a handoff */
#define FAIRLEAD_ABORT 2       /* flags of a control */
#define FAIRLEAD_ANSWER 0x80   /* flags of an answer */
#define FAIRLEAD_REFUSED 0xc0  /* flags of a refusal; arg is the reason */
#define FAIRLEAD_SERVER 0x10   /* flags: from the server */

struct fairlead_message {
	uint32_t cid;
	uint8_t op;
	uint8_t flags;
	uint16_t len;
	uint64_t arg;
};

/* Is called with messages that nobody has asked for, while an answer is awaited. */
typedef void fairlead_event(void *context, const struct fairlead_message *message);

static inline void fairlead_encode(const struct fairlead_message *message, unsigned char *bytes)
{
	int at;

	for (at = 0; at < 4; at++)
		bytes[at] = message->cid >> (8 * at);
	bytes[4] = message->op;
	bytes[5] = message->flags;
	bytes[6] = message->len;
	bytes[7] = message->len >> 8;
	for (at = 0; at < 8; at++)
		bytes[8 + at] = message->arg >> (8 * at);
}

static inline void fairlead_decode(const unsigned char *bytes, struct fairlead_message *message)
{
	int at;

	memset(message, 0, sizeof(*message));
	for (at = 0; at < 4; at++)
		message->cid |= (uint32_t)bytes[at] << (8 * at);
	message->op = bytes[4];
	message->flags = bytes[5];
	message->len = bytes[6] | bytes[7] << 8;
	for (at = 0; at < 8; at++)
		message->arg |= (uint64_t)bytes[8 + at] << (8 * at);
}

/* A descriptor, or -errno. */
static inline int fairlead_connect(const char *path)
{
	struct sockaddr_un name;
	int link, error;

	memset(&name, 0, sizeof(name));
	name.sun_family = AF_UNIX;
	if (strlen(path) >= sizeof(name.sun_path))
		return -ENAMETOOLONG;
	strcpy(name.sun_path, path);
	link = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (link < 0)
		return -errno;
	if (connect(link, (struct sockaddr *)&name, sizeof(name))) {
		error = errno;
		close(link);
		return -error;
	}
	return link;
}

/* Sends a message with 0 or 2 descriptors: 0, or -errno. */
static inline int fairlead_send(int link, const struct fairlead_message *message, const int *fds)
{
	unsigned char bytes[FAIRLEAD_MESSAGE_BYTES];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec part = { bytes, sizeof(bytes) };
	struct msghdr header;

	fairlead_encode(message, bytes);
	memset(&header, 0, sizeof(header));
	header.msg_iov = &part;
	header.msg_iovlen = 1;
	if (fds) {
		memset(&control, 0, sizeof(control));
		header.msg_control = control.room;
		header.msg_controllen = sizeof(control.room);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(2 * sizeof(int));
		memcpy(CMSG_DATA(&control.header), fds, 2 * sizeof(int));
	}
	return sendmsg(link, &header, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Receives a message within a number of milliseconds, and 2 descriptors if it has them, else -1
 * twice: 0, or -errno. */
static inline int fairlead_receive(int link, int timeout_ms, struct fairlead_message *message,
				   int *fds)
{
	unsigned char bytes[FAIRLEAD_MESSAGE_BYTES];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec part = { bytes, sizeof(bytes) };
	struct pollfd ready = { link, POLLIN, 0 };
	struct msghdr header;
	struct cmsghdr *entry;
	ssize_t got;
	int count = poll(&ready, 1, timeout_ms);

	fds[0] = fds[1] = -1;
	if (count <= 0)
		return count ? -errno : -ETIMEDOUT;
	memset(&header, 0, sizeof(header));
	header.msg_iov = &part;
	header.msg_iovlen = 1;
	header.msg_control = control.room;
	header.msg_controllen = sizeof(control.room);
	got = recvmsg(link, &header, MSG_CMSG_CLOEXEC);
	if (got < 0)
		return -errno;
	for (entry = CMSG_FIRSTHDR(&header); entry; entry = CMSG_NXTHDR(&header, entry))
		if (entry->cmsg_level == SOL_SOCKET && entry->cmsg_type == SCM_RIGHTS &&
		    entry->cmsg_len == CMSG_LEN(2 * sizeof(int)))
			memcpy(fds, CMSG_DATA(entry), 2 * sizeof(int));
	if (got != sizeof(bytes))
		return got ? -EPROTO : -EPIPE;
	fairlead_decode(bytes, message);
	return 0;
}

/* Gives a command and waits for its answer: 0, a reason above 0, or -errno. */
static inline int fairlead_ask(int link, const struct fairlead_message *command, const int *fds,
			       int timeout_ms, struct fairlead_message *answer, int *back,
			       fairlead_event *event, void *context)
{
	int outcome = fairlead_send(link, command, fds);

	while (!outcome) {
		outcome = fairlead_receive(link, timeout_ms, answer, back);
		if (outcome)
			break;
		if (answer->cid == command->cid && answer->op == command->op &&
		    answer->flags & FAIRLEAD_ANSWER)
			return answer->flags == FAIRLEAD_REFUSED ? (int)answer->arg : 0;
		if (event)
			event(context, answer);
	}
	return outcome;
}

/* Hands two connections off; see above. All that was read from one must have been written to the
 * other. */
static inline int fairlead_adopt(int link, int client, int server, uint32_t *number,
				 fairlead_event *event, void *context)
{
	struct fairlead_message command = { 0, FAIRLEAD_HANDOFF, FAIRLEAD_PAIR, 0, 0 }, answer;
	int fds[2] = { client, server }, none[2], outcome;

	outcome = fairlead_ask(link, &command, fds, 5000, &answer, none, event, context);
	if (!outcome)
		*number = (uint32_t)answer.arg;
	return outcome;
}

/* Takes a connection back: two connected sockets in `fds`, the client's first. Fairlead waits up to
 * `wait_ms` for a moment at which nothing is in flight. */
static inline int fairlead_give_back(int link, uint32_t number, uint16_t wait_ms, int *fds,
				     fairlead_event *event, void *context)
{
	struct fairlead_message command = { number, FAIRLEAD_RESTORE, 0, wait_ms, 0 }, answer;
	int outcome;

	outcome = fairlead_ask(link, &command, NULL, 5000 + wait_ms, &answer, fds, event, context);
	return !outcome && fds[0] < 0 ? -EPROTO : outcome;
}

#endif
