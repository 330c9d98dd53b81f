"""Routes for those who operate the server: probes and metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from bert_serve.errors import ModelNotReadyError
from bert_serve.http.json_response import JSONResponse

__all__ = ["router"]

router = APIRouter(tags=["operations"])


_HEALTH = {"status": "ready", "models": ["minilm"]}
_METRICS = 'bert_requests_total{route="/embed",status="200"} 3.0'


@router.head("/health", include_in_schema=False)
@router.get(
    "/health",
    summary="Ready: all models are loaded and have passed their self-tests",
    responses={200: {"content": {"application/json": {"example": _HEALTH}}}},
)
async def health(request: Request) -> Response:
    """Answer 200 once all models are loaded and have passed their self-tests, 503 before, or where one is broken."""
    models = request.app.state.models
    models.check_working()
    if not models.ready:
        waiting = [name for name, served in models.items() if not served.ready]
        raise ModelNotReadyError(f"models being loaded: {', '.join(waiting)}")
    return JSONResponse({"status": "ready", "models": list(models)})


@router.head("/live", include_in_schema=False)
@router.get(
    "/live",
    summary="Alive: the server answers",
    responses={200: {"content": {"application/json": {"example": {"status": "live"}}}}},
)
async def live(request: Request) -> Response:
    """Answer 200 while the server runs, also before its models are loaded; 503 where a model is broken."""
    request.app.state.models.check_working()
    return JSONResponse({"status": "live"})


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": _METRICS}}}},
)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    return Response(request.app.state.metrics.text(), media_type=CONTENT_TYPE_LATEST)
