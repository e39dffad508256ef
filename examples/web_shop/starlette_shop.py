# starlette_shop.py
from orders import Order, Sessions, confirm, tables, tasks
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlead.contrib.asgi import lifespan
from fairlead.contrib.sqlalchemy import Submitter


async def place_order(request: Request) -> Response:
    number = int(request.path_params["number"])
    async with Sessions.begin() as session:
        session.add(Order(id=number))
        await Submitter(session).submit_async(confirm, order=number)
        if number % 3 == 0:
            raise HTTPException(409, "sold out")
    return Response(status_code=201)


site = Starlette(
    routes=[Route("/orders/{number:int}", place_order, methods=["POST"])],
    lifespan=lifespan(tasks, tables),
)
