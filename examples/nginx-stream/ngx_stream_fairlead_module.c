/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For nginx: hands connections that `proxy_pass` of a `stream` server copies off to Fairlead, once
 * both directions together have carried a number of bytes. nginx itself stays as it is.
 *
 *	server {
 *		listen 192.0.2.10:7000;
 *		proxy_pass 198.51.100.5:7000;
 *		fairlead_handoff /run/fairlead/edge.adopt 64k;
 *	}
 *
 * A worker needs the right to use the socket. It waits for an adoption, mostly less than a
 * millisecond. A connection that is refused stays nginx's.
 */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "fairlead_handoff.h"

/* How often a connection is tried again that was refused for now, and after how long. */
#define TRIES 20
#define PAUSE_MS 20

typedef struct {
	ngx_str_t path;
	off_t after;
	int link; /* of this worker; -1: none */
} handoff_conf_t;

typedef struct {
	ngx_event_t due;
	ngx_stream_session_t *session;
	int tries;
} handoff_ctx_t;

static void *create_conf(ngx_conf_t *cf);
static char *merge_conf(ngx_conf_t *cf, void *outer, void *inner);
static char *set_handoff(ngx_conf_t *cf, ngx_command_t *command, void *conf);
static ngx_int_t add_filter(ngx_conf_t *cf);

static ngx_command_t commands[] = {
	{ ngx_string("fairlead_handoff"),
	  NGX_STREAM_MAIN_CONF | NGX_STREAM_SRV_CONF | NGX_CONF_TAKE12, set_handoff,
	  NGX_STREAM_SRV_CONF_OFFSET, 0, NULL },
	ngx_null_command
};

static ngx_stream_module_t context = {
	.postconfiguration = add_filter,
	.create_srv_conf = create_conf,
	.merge_srv_conf = merge_conf,
};

ngx_module_t ngx_stream_fairlead_module = {
	NGX_MODULE_V1, &context, commands, NGX_STREAM_MODULE, NULL, NULL, NULL,
	NULL,	       NULL,	 NULL,	   NULL,	      NGX_MODULE_V1_PADDING
};

static ngx_stream_filter_pt next_filter;

static void *create_conf(ngx_conf_t *cf)
{
	handoff_conf_t *conf = ngx_pcalloc(cf->pool, sizeof(*conf));

	if (conf) {
		conf->after = NGX_CONF_UNSET;
		conf->link = -1;
	}
	return conf;
}

static char *merge_conf(ngx_conf_t *cf, void *outer, void *inner)
{
	handoff_conf_t *from = outer, *to = inner;

	ngx_conf_merge_str_value(to->path, from->path, "");
	ngx_conf_merge_off_value(to->after, from->after, 0);
	return NGX_CONF_OK;
}

static char *set_handoff(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	handoff_conf_t *own = conf;
	ngx_str_t *words = cf->args->elts;
	off_t after = 0;

	if (own->path.data)
		return "is there twice";
	own->path = words[1]; /* nginx ends words by a zero */
	if (cf->args->nelts == 3 && (after = ngx_parse_offset(&words[2])) == NGX_ERROR)
		return "needs a number of bytes behind the socket";
	own->after = after;
	return NGX_CONF_OK;
}

/* Nothing that was read is still to be written, and no byte is anything but the streams'. */
static int is_drained(ngx_stream_session_t *session)
{
	ngx_stream_upstream_t *upstream = session->upstream;
	ngx_connection_t *client = session->connection, *server;

	if (!upstream || !upstream->connected || client->type != SOCK_STREAM)
		return 0;
	server = upstream->peer.connection;
	if (!server || server->type != SOCK_STREAM)
		return 0;
#if (NGX_SSL)
	if (client->ssl || server->ssl)
		return 0;
#endif
	return !upstream->upstream_out && !upstream->upstream_busy && !upstream->downstream_out &&
	       !upstream->downstream_busy && !client->buffered && !server->buffered &&
	       !client->read->eof && !server->read->eof && !client->read->error &&
	       !server->read->error;
}

/* 0, a reason to refuse, or below 0: Fairlead cannot be reached. */
static int hand_off(handoff_conf_t *conf, int client, int server, uint32_t *number)
{
	int outcome;

	if (conf->link < 0)
		conf->link = fairlead_connect((char *)conf->path.data);
	if (conf->link < 0)
		return conf->link;
	outcome = fairlead_adopt(conf->link, client, server, number, NULL, NULL);
	if (outcome < 0) {
		close(conf->link); /* it may have restarted: a new link next time */
		conf->link = -1;
	}
	return outcome;
}

static void on_due(ngx_event_t *due)
{
	handoff_ctx_t *ctx = due->data;
	ngx_stream_session_t *session = ctx->session;
	handoff_conf_t *conf = ngx_stream_get_module_srv_conf(session, ngx_stream_fairlead_module);
	ngx_connection_t *client = session->connection, *server;
	uint32_t number = 0;
	int outcome;

	if (!ctx->tries)
		return;
	if (!is_drained(session)) {
		ngx_add_timer(due, PAUSE_MS);
		return;
	}
	server = session->upstream->peer.connection;
	outcome = hand_off(conf, client->fd, server->fd, &number);
	if (outcome) {
		ctx->tries--;
		if (outcome > 0 && outcome != FAIRLEAD_BUSY && outcome != FAIRLEAD_UNSTABLE &&
		    outcome != FAIRLEAD_QUEUE_NOT_EMPTY)
			ctx->tries = 0;
		if (ctx->tries)
			ngx_add_timer(due, PAUSE_MS);
		else
			ngx_log_error(NGX_LOG_WARN, client->log, 0,
				      "fairlead: not handed off, %d", outcome);
		return;
	}
	ctx->tries = 0;
	ngx_log_error(NGX_LOG_NOTICE, client->log, 0, "fairlead: handed off as %uD", number);
	/* For nginx both ends have closed now. Closing the descriptors tells nobody. */
	client->read->ready = server->read->ready = 0;
	client->read->eof = server->read->eof = 1;
	client->read->handler(client->read);
}

static void forget(void *data)
{
	handoff_ctx_t *ctx = data;

	if (ctx->due.timer_set)
		ngx_del_timer(&ctx->due);
	if (ctx->due.posted)
		ngx_delete_posted_event(&ctx->due);
}

static handoff_ctx_t *new_ctx(ngx_stream_session_t *session)
{
	ngx_connection_t *client = session->connection;
	ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(client->pool, sizeof(handoff_ctx_t));
	handoff_ctx_t *ctx;

	if (!cleanup)
		return NULL;
	ctx = cleanup->data;
	ngx_memzero(ctx, sizeof(*ctx));
	ctx->session = session;
	ctx->tries = TRIES;
	ctx->due.data = ctx;
	ctx->due.handler = on_due;
	ctx->due.log = client->log;
	ctx->due.cancelable = 1; /* a worker that ends does not wait for it */
	cleanup->handler = forget;
	ngx_stream_set_ctx(session, ctx, ngx_stream_fairlead_module);
	return ctx;
}

/* Sees all bytes on their way out; the handoff itself waits until they are written. */
static ngx_int_t filter(ngx_stream_session_t *session, ngx_chain_t *in, ngx_uint_t from_upstream)
{
	handoff_conf_t *conf = ngx_stream_get_module_srv_conf(session, ngx_stream_fairlead_module);
	handoff_ctx_t *ctx = ngx_stream_get_module_ctx(session, ngx_stream_fairlead_module);
	ngx_int_t outcome = next_filter(session, in, from_upstream);

	if (outcome == NGX_ERROR || !conf->path.len || !session->upstream)
		return outcome;
	if (session->received + session->upstream->received < conf->after)
		return outcome;
	if (!ctx && !(ctx = new_ctx(session)))
		return NGX_ERROR;
	if (ctx->tries && !ctx->due.timer_set && !ctx->due.posted) {
		ngx_post_event(&ctx->due, &ngx_posted_events);
	}
	return outcome;
}

static ngx_int_t add_filter(ngx_conf_t *cf)
{
	next_filter = ngx_stream_top_filter;
	ngx_stream_top_filter = filter;
	return NGX_OK;
}
